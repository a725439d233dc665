import functools, sys
class Loud:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("del", self.name)
@functools.lru_cache
def make(name):
    return Loud(name)
make("cached")
sys.held = Loud("on sys")
print("end of main")
