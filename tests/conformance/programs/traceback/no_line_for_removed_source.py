import os
def f():
    raise ValueError("the source is gone")
os.remove("main.py")
f()
