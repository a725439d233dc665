import atexit
atexit.register(print, "exit functions run after the traceback")
raise RuntimeError("broken")
