import atexit
atexit.register(print, "exit function")
raise KeyboardInterrupt
