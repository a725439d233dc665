exit(10)
