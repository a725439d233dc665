import faulthandler, sys
def f():
    faulthandler.dump_traceback(file=sys.stderr, all_threads=False)
f()
print(faulthandler.is_enabled())
