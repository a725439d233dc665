import sys
print(hasattr(sys, "__interactivehook__"), hasattr(sys, "ps1"))
sys.displayhook([1, 2])
print(__builtins__._)
