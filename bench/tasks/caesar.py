def shift(text, by):
    moved = []
    for letter in text:
        if letter.isalpha():
            first = ord("a") if letter.islower() else ord("A")
            letter = chr((ord(letter) - first + by) % 26 + first)
        moved.append(letter)
    return "".join(moved)


assert shift("Hello, World!", 3) == "Khoor, Zruog!"
assert shift(shift("Round trip", 11), -11) == "Round trip"
assert shift("xyz", 3) == "abc"
