import sys
try:
    sys.exit(1)
except SystemExit as error:
    print(repr(error), error.code, error.args)
print("went on")
