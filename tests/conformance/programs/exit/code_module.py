import code
interpreter = code.InteractiveInterpreter()
interpreter.runsource("1 / 0")
interpreter.runsource("print('still here')")
