import atexit
atexit.register(print, "exit function")
atexit._run_exitfuncs()
print("main goes on")
