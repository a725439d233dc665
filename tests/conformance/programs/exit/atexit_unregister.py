import atexit
atexit.register(print, "stays")
atexit.register(len)
atexit.unregister(len)
print(atexit._ncallbacks() >= 1)
