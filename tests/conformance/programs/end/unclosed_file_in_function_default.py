def f(file=open(1, "w", closefd=False)):
    file.write("left in a buffer\n")
f()
