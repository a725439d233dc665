from itertools import groupby


def pack(text):
    return [(letter, len(list(group))) for letter, group in groupby(text)]


def unpack(pairs):
    return "".join(letter * count for letter, count in pairs)


assert pack("aaabcc") == [("a", 3), ("b", 1), ("c", 2)]
assert unpack(pack("mississippi")) == "mississippi"
assert pack("") == []
