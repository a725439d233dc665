def digital_root(number):
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number


assert digital_root(987654321) == 9
assert digital_root(38) == 2
assert digital_root(0) == 0
