import gc
names = set()
for thing in gc.get_objects():
    module = getattr(thing, "__module__", None) if isinstance(thing, type) else None
    if isinstance(module, str) and "belljar" in module:
        names.add(module + "." + thing.__name__)
print(sorted(names))
