import sys, traceback
def main():
    raise ValueError("handled by main")
try:
    main()
except ValueError:
    traceback.print_exc()
    sys.exit(26)
