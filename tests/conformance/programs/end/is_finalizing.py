import atexit, sys
class Late:
    def __del__(self):
        print("del", sys.is_finalizing())
late = Late()
atexit.register(lambda: print("atexit", sys.is_finalizing()))
