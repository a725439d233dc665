def numbers():
    for each in (1, 2, 0):
        yield 1 / each
print({index: value for index, value in enumerate(numbers())})
