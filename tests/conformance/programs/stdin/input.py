first = input()
second = input("prompt> ")
print(repr(first), repr(second))
