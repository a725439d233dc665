def rotated(grid):
    return [list(row) for row in zip(*grid[::-1])]


grid = [[1, 2, 3], [4, 5, 6]]
assert rotated(grid) == [[4, 1], [5, 2], [6, 3]]
assert rotated(rotated(rotated(rotated(grid)))) == grid
assert rotated([]) == []
