import sys
try:
    sys.exit(3)
except SystemExit:
    pass
raise ValueError("the real end")
