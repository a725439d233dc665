import sys
print(sorted(name for name in sys.modules if name in sys.stdlib_module_names and not name.startswith("_")))
