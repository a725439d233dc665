for number in range(3000):
    print(number, "line")
