def angle(hours, minutes):
    between = abs((hours % 12 + minutes / 60) * 30 - minutes * 6)
    return min(between, 360 - between)


assert angle(3, 0) == 90
assert angle(12, 0) == 0
assert angle(9, 30) == 105
