import contextlib
@contextlib.contextmanager
def room():
    try:
        yield
    finally:
        print("left the room")
manager = room()
manager.__enter__()
print("end of main")
