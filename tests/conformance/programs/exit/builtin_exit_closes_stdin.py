import sys
try:
    exit()
except SystemExit as error:
    print(error.code, sys.stdin.closed)
