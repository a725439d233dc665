import operator

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def reckon(words):
    stack = []
    for word in words.split():
        if word in SIGNS:
            right, left = stack.pop(), stack.pop()
            stack.append(SIGNS[word](left, right))
        else:
            stack.append(int(word))
    (answer,) = stack
    return answer


assert reckon("3 4 + 2 *") == 14
assert reckon("5 1 2 + 4 * + 3 -") == 14
assert reckon("7") == 7
