import math


def common(*numbers):
    return math.gcd(*numbers), math.lcm(*numbers)


assert common(12, 18) == (6, 36)
assert common(7, 5) == (1, 35)
assert common(8, 12, 20) == (4, 120)
