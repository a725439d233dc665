from collections import Counter


def most_common_word(text):
    words = [word.strip(".,!?").lower() for word in text.split()]
    return Counter(words).most_common(1)[0]


assert most_common_word("The jar holds the bell. The bell rings.") == ("the", 3)
assert most_common_word("one") == ("one", 1)
assert most_common_word("No no, NO!") == ("no", 3)
