def distance(one, other):
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], place
        for column, wanted in enumerate(other, 1):
            cost = min(row[column] + 1, row[column - 1] + 1, diagonal + (letter != wanted))
            diagonal, row[column] = row[column], cost
    return row[-1]


assert distance("kitten", "sitting") == 3
assert distance("", "abc") == 3
assert distance("same", "same") == 0
