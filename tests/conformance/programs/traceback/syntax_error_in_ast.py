import ast
ast.parse("(1, 2", filename="typed.py")
