print(dir())
print(list(globals()))
first = 1
second = 2
print(list(globals())[-2:], list(locals()) == list(globals()), vars() is globals())
