import bisect


def position(numbers, wanted):
    place = bisect.bisect_left(numbers, wanted)
    return place if place < len(numbers) and numbers[place] == wanted else -1


assert position([1, 4, 9, 16, 25], 9) == 2
assert position([1, 4, 9, 16, 25], 10) == -1
assert position([], 1) == -1
