import sys
print(sorted(name for name in dir(sys)))
