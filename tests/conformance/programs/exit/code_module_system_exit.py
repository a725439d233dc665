import code
code.InteractiveInterpreter().runcode(compile("raise SystemExit(25)", "<typed>", "exec"))
