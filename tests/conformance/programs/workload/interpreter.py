import operator
def evaluate(text):
    stack = []
    operators = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    for token in text.split():
        if token in operators:
            b, a = stack.pop(), stack.pop()
            stack.append(operators[token](a, b))
        else:
            stack.append(float(token))
    return stack.pop()
print(evaluate("3 4 + 2 *"), evaluate("1 2 3 * +"))
evaluate("+")
