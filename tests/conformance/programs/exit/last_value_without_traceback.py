import sys
sys.last_value = sys.last_exc = ValueError("never raised")
print("fine")
