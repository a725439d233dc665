import ast, dis
def f(x):
    return x + 1
dis.dis(f)
print(ast.dump(ast.parse("a = 1")))
