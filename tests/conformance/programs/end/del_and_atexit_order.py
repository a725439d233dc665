import atexit
class Loud:
    def __del__(self):
        print("del")
a = Loud()
atexit.register(print, "atexit")
print("end of main")
