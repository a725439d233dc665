help(len)
help("if")
