from itertools import product


def next_generation(alive):
    neighbours = {}
    for row, column in alive:
        for down, right in product((-1, 0, 1), repeat=2):
            if down or right:
                place = row + down, column + right
                neighbours[place] = neighbours.get(place, 0) + 1
    return {place for place, count in neighbours.items() if count == 3 or (count == 2 and place in alive)}


blinker = {(0, 1), (1, 1), (2, 1)}
block = {(0, 0), (0, 1), (1, 0), (1, 1)}
assert next_generation(blinker) == {(1, 0), (1, 1), (1, 2)}
assert next_generation(next_generation(blinker)) == blinker
assert next_generation(block) == block
