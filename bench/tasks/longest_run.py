from itertools import groupby


def longest_run(text):
    runs = [(len(list(group)), letter) for letter, group in groupby(text)]
    length, letter = max(runs, default=(0, ""), key=lambda run: run[0])
    return letter * length


assert longest_run("aabbbcc") == "bbb"
assert longest_run("xy") == "x"
assert longest_run("") == ""
