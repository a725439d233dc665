import atexit
def fail():
    raise ValueError("in atexit")
atexit.register(fail)
print("main is done")
