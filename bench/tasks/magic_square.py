def is_magic(square):
    size = len(square)
    sums = {sum(row) for row in square} | {sum(column) for column in zip(*square)}
    sums.add(sum(square[place][place] for place in range(size)))
    sums.add(sum(square[place][-place - 1] for place in range(size)))
    return len(sums) == 1


assert is_magic([[2, 7, 6], [9, 5, 1], [4, 3, 8]])
assert not is_magic([[1, 2], [3, 4]])
assert is_magic([[5]])
