import contextlib, sys
@contextlib.contextmanager
def room():
    print("enter")
    try:
        yield
    finally:
        print("leave")
with room():
    sys.exit(13)
