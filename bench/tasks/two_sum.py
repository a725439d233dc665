def pair_with_sum(numbers, wanted):
    seen = {}
    for place, number in enumerate(numbers):
        if wanted - number in seen:
            return seen[wanted - number], place
        seen[number] = place
    return None


assert pair_with_sum([3, 8, 5, 11], 13) == (1, 2)
assert pair_with_sum([4, 4], 8) == (0, 1)
assert pair_with_sum([1, 2], 10) is None
