import weakref
class Thing:
    pass
def callback(reference):
    raise KeyError("in callback")
thing = Thing()
reference = weakref.ref(thing, callback)
del thing
print("goes on")
