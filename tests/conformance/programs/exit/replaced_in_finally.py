import sys
try:
    sys.exit(1)
finally:
    sys.exit(14)
