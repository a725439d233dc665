import atexit, sys
def fail():
    raise ValueError("in atexit")
atexit.register(fail)
sys.exit(21)
