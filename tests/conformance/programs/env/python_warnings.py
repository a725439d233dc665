import sys, warnings
warnings.warn("told to fail", UserWarning)
print(sys.warnoptions)
