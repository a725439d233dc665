import re

RULES = {"a digit": r"\d", "a capital": r"[A-Z]", "eight letters": r".{8}", "a sign": r"[^\w\s]"}


def missing(password):
    return [name for name, pattern in RULES.items() if not re.search(pattern, password)]


assert missing("Secret-42") == []
assert missing("secret") == ["a digit", "a capital", "eight letters", "a sign"]
assert missing("LONGENOUGH1") == ["a sign"]
