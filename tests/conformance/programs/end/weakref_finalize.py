import weakref
class Thing:
    pass
thing = Thing()
weakref.finalize(thing, print, "finalized")
quiet = weakref.finalize(thing, print, "not at exit")
quiet.atexit = False
print("end of main")
