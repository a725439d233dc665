print(sorted(["b", "A", "a", "B"], key=str.lower), sorted([3, 1, 2], reverse=True), max([], default="none"))
sorted([1, "a"])
