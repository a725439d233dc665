def steps(number):
    count = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        count += 1
    return count


assert steps(1) == 0
assert steps(6) == 8
assert steps(27) == 111
