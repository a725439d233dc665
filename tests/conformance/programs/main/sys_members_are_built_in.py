import builtins, sys
print([name for name in sorted(vars(sys)) if callable(getattr(sys, name)) and type(getattr(sys, name)).__name__ == "function"])
print([name for name in sorted(vars(builtins)) if type(getattr(builtins, name)).__name__ == "function"])
print(sys.exit, type(sys.exit), sys.exit.__module__, sys.exit.__doc__.splitlines()[0])
