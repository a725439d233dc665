import sys
class Last:
    def __del__(self):
        sys.exit(9)
a = Last()
