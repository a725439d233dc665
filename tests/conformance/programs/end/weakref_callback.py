import weakref
class Thing:
    pass
thing = Thing()
reference = weakref.ref(thing, lambda reference: print("callback"))
print("end of main")
