error = SystemExit(3)
print(type(SystemExit.__dict__["code"]).__name__, SystemExit.__dict__["code"].__doc__)
print(error.code, error.args, repr(error), str(error))
error.code = 4
print(error.code, error.args)
error.code = "text"
print(error.code)
del error.code
print(error.code)
print(sorted(vars(SystemExit)))
