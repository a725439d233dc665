import statistics


def summary(numbers):
    return min(numbers), statistics.median(numbers), statistics.fmean(numbers), max(numbers)


assert summary([3, 1, 2]) == (1, 2, 2.0, 3)
assert summary([4, 4, 10, 2]) == (2, 4.0, 5.0, 10)
assert summary([7]) == (7, 7, 7.0, 7)
