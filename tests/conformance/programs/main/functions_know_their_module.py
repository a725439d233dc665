def f():
    pass
class C:
    class D:
        pass
print(f.__module__, C.__module__, C.D.__qualname__, repr(C), repr(C.D), f.__globals__ is globals(), f.__code__.co_filename)
