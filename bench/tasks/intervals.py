def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


assert merge([[8, 10], [1, 3], [2, 6]]) == [[1, 6], [8, 10]]
assert merge([[1, 4], [4, 5]]) == [[1, 5]]
assert merge([]) == []
