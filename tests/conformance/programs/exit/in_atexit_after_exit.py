import atexit, sys
atexit.register(lambda: sys.exit(5))
sys.exit(19)
