def divide(a, b):
    return a / b


def main():
    divide(1, 0)


main()
