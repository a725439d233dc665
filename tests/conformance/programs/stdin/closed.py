import sys
sys.stdin.close()
print(sys.stdin.closed)
try:
    input()
except ValueError as error:
    print(error)
