import copy, shelve
class Thing:
    def __init__(self):
        self.parts = [1, [2]]
thing = Thing()
other = copy.deepcopy(thing)
other.parts[1].append(3)
print(thing.parts, other.parts)
with shelve.open("store") as store:
    store["thing"] = thing
with shelve.open("store") as store:
    print(store["thing"].parts, list(store))
