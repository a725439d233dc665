exec("import sys; sys.exit(4)")
