def multiply(left, right):
    columns = list(zip(*right))
    return [[sum(one * other for one, other in zip(row, column)) for column in columns] for row in left]


assert multiply([[1, 2], [3, 4]], [[0, 1], [1, 0]]) == [[2, 1], [4, 3]]
assert multiply([[1, 2, 3]], [[4], [5], [6]]) == [[32]]
assert multiply([[2]], [[21]]) == [[42]]
