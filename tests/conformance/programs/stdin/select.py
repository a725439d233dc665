import select, sys
print(bool(select.select([sys.stdin], [], [], 5)[0]))
print(sys.stdin.readline())
