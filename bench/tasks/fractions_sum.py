from fractions import Fraction


def harmonic(count):
    return sum(Fraction(1, number) for number in range(1, count + 1))


assert harmonic(1) == 1
assert harmonic(4) == Fraction(25, 12)
assert str(harmonic(6)) == "49/20"
