import sys
class Never:
    sys.exit(4)
