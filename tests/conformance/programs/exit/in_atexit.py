import atexit, sys
atexit.register(lambda: print("last"))
atexit.register(lambda: sys.exit(18))
atexit.register(lambda: print("first"))
