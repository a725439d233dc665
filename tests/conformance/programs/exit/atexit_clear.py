import atexit, sys
atexit.register(print, "never printed")
atexit._clear()
print("main is done")
sys.exit(22)
