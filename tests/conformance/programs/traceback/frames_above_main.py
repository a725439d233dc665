import inspect, sys
print(len(inspect.stack()), sys._getframe().f_back, sys._getframe(0).f_code.co_name, sys._getframe().f_code.co_filename)
try:
    sys._getframe(1)
except ValueError as error:
    print(error)
def depth():
    frame, count = sys._getframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count
print(depth())
