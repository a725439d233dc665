import importlib.util
try:
    print(importlib.util.find_spec("__main__"))
except ValueError as error:
    print(error)
print(importlib.util.find_spec("main").origin)
