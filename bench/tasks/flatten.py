def flatten(nested):
    for each in nested:
        if isinstance(each, (list, tuple)):
            yield from flatten(each)
        else:
            yield each


assert list(flatten([1, [2, (3, [4])], 5])) == [1, 2, 3, 4, 5]
assert list(flatten([])) == []
assert list(flatten([[[]], "ab"])) == ["ab"]
