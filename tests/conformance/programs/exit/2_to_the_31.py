import sys
sys.exit(2**31 + 7)
