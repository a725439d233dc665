import sys
try:
    1 / 0
except ZeroDivisionError as error:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error
print("fine")
