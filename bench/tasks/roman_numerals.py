SIGNS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC")]
SIGNS += [(50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def roman(number):
    written = ""
    for value, sign in SIGNS:
        count, number = divmod(number, value)
        written += sign * count
    return written


assert roman(1994) == "MCMXCIV"
assert roman(49) == "XLIX"
assert roman(3) == "III"
