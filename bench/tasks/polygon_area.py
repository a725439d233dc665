import math


def area(corners):
    pairs = zip(corners, corners[1:] + corners[:1])
    return abs(sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in pairs)) / 2


hexagon = [(math.cos(math.pi * turn / 3), math.sin(math.pi * turn / 3)) for turn in range(6)]
assert area([(0, 0), (4, 0), (4, 3)]) == 6
assert area([(0, 0), (2, 0), (2, 2), (0, 2)]) == 4
assert math.isclose(area(hexagon), 3 * math.sqrt(3) / 2)
