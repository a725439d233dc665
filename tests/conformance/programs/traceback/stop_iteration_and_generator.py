def broken():
    raise StopIteration
    yield
next(broken())
