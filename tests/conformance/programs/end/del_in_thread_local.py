import threading
class Loud:
    def __del__(self):
        print("del")
local = threading.local()
local.held = Loud()
print("end of main")
