import builtins
print([name for name in ("exit", "quit", "copyright", "credits", "license", "help", "open", "input", "breakpoint", "_") if hasattr(builtins, name)])
print(exit, quit, sep="\n")
print(copyright)
print(str(credits)[:60])
print(sorted(vars(builtins)))
