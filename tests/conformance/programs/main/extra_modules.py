import sys
print(sorted(name for name in sys.modules if not name.startswith("_")))
