import sys
sys.exit(status=1)
