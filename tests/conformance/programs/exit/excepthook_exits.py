import sys
def hook(kind, value, traceback):
    print("hook:", kind.__name__, value)
    sys.exit(23)
sys.excepthook = hook
raise ValueError("told to the hook")
