import sys
for code in (1, 2, "x", None):
    try:
        sys.exit(code)
    except SystemExit as error:
        print(error.code)
