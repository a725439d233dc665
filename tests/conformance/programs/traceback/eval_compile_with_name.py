code = compile("1 +\\\n 'a'", "formula", "eval")
eval(code)
