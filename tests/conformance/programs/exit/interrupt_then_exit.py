import sys
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
