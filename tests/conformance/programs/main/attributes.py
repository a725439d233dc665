import builtins
print(__name__, __file__, __spec__, __package__, __doc__, __cached__)
print(__builtins__ is builtins, type(__loader__).__name__, type(__loader__).__module__, __loader__.name, __loader__.path)
print(__annotations__ if "__annotations__" in globals() else "no annotations")
