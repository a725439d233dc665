import sys
try:
    raise KeyboardInterrupt
except KeyboardInterrupt as error:
    sys.last_value = sys.last_exc = error
print("fine")
