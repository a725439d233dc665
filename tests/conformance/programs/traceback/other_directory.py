import os
os.chdir("/")
def f():
    raise ValueError("elsewhere")
f()
