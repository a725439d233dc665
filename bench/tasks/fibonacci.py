from functools import cache


@cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


assert fibonacci(10) == 55
assert fibonacci(90) == 2880067194370816120
assert [fibonacci(number) for number in range(6)] == [0, 1, 1, 2, 3, 5]
