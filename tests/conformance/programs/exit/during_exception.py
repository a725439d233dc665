import sys
try:
    raise ValueError("lost")
except ValueError:
    sys.exit(15)
