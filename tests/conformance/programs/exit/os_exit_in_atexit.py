import atexit, os
atexit.register(lambda: os._exit(20))
print("flushed", flush=True)
