import sys, traceback
def inner():
    raise LookupError("looked")
try:
    inner()
except LookupError:
    traceback.print_exc()
    print(traceback.format_exc(), end="")
    print([(frame.name, frame.lineno, frame.line) for frame in traceback.extract_tb(sys.exc_info()[2])])
