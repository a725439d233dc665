def is_balanced(text):
    closing = {")": "(", "]": "[", "}": "{"}
    waiting = []
    for letter in text:
        if letter in closing.values():
            waiting.append(letter)
        elif letter in closing and (not waiting or waiting.pop() != closing[letter]):
            return False
    return not waiting


assert is_balanced("{[()()]}")
assert not is_balanced("(]")
assert not is_balanced("((")
