def anagrams(words):
    groups = {}
    for word in words:
        groups.setdefault("".join(sorted(word)), []).append(word)
    return [group for group in groups.values() if len(group) > 1]


assert anagrams(["stop", "pots", "jar", "tops", "raj"]) == [["stop", "pots", "tops"], ["jar", "raj"]]
assert anagrams(["alone"]) == []
assert anagrams([]) == []
