def ranking(scores):
    return [name for name, points in sorted(scores.items(), key=lambda score: (-score[1], score[0]))]


assert ranking({"eve": 3, "ann": 5, "bob": 3}) == ["ann", "bob", "eve"]
assert ranking({}) == []
assert ranking({"z": 0, "y": 0}) == ["y", "z"]
