import sys, warnings
print(warnings.filters)
print(sys.warnoptions)
