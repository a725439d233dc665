CODE = {"e": ".", "t": "-", "s": "...", "o": "---", "a": ".-", "n": "-."}
LETTERS = {signs: letter for letter, signs in CODE.items()}


def send(text):
    return " / ".join(" ".join(CODE[letter] for letter in word) for word in text.split())


def receive(signs):
    return " ".join("".join(LETTERS[each] for each in word.split()) for word in signs.split(" / "))


assert send("sos") == "... --- ..."
assert send("no tea") == "-. --- / - . .-"
assert receive(send("eat no oats")) == "eat no oats"
