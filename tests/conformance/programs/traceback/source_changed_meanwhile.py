def f():
    raise ValueError("the source has changed")
with open("main.py", "w") as file:
    file.write("# changed\n" * 10)
f()
