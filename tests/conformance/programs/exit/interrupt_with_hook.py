import sys
sys.excepthook = lambda kind, value, traceback: print("hook:", kind.__name__)
raise KeyboardInterrupt
