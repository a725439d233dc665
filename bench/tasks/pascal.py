def triangle(height):
    rows = [[1]]
    while len(rows) < height:
        last = rows[-1]
        rows.append([1, *(left + right for left, right in zip(last, last[1:])), 1])
    return rows


assert triangle(1) == [[1]]
assert triangle(5)[-1] == [1, 4, 6, 4, 1]
assert [sum(row) for row in triangle(6)] == [1, 2, 4, 8, 16, 32]
