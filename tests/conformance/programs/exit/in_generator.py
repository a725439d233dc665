import sys
def numbers():
    yield 1
    sys.exit(6)
for number in numbers():
    print(number)
