def numbers():
    try:
        yield 1
    finally:
        print("generator closed")
left = numbers()
print(next(left))
