import sys
def measure(n=1):
    try:
        return measure(n + 1)
    except RecursionError:
        return n
print(sys.getrecursionlimit(), measure())
