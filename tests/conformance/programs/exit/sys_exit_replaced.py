import sys
def mine(code=None):
    print("asked for", code)
    raise SystemExit(code)
sys.exit = mine
sys.exit(24)
