import sys
sys.excepthook = lambda kind, value, traceback: print("hook:", kind.__name__, value, traceback.tb_lineno, file=sys.stderr)
raise ValueError("told to the hook")
