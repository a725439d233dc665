import sys
known = {*sys.stdlib_module_names, "__main__"}
print(sorted({name.partition(".")[0] for name in sys.modules} - known))
