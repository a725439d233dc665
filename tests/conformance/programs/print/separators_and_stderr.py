import sys
print(1, 2.5, None, [1, "a"], sep=" | ", end="!\n")
print("to stderr", file=sys.stderr)
sys.stderr.write("unfinished")
