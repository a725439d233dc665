import heapq


def largest_two(numbers):
    return heapq.nlargest(2, set(numbers))


assert largest_two([4, 9, 9, 1]) == [9, 4]
assert largest_two([5]) == [5]
assert largest_two(range(100)) == [99, 98]
