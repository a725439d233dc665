import sys
try:
    raise ValueError("handled")
except ValueError as error:
    sys.last_value = sys.last_exc = error
