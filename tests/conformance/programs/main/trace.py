import sys
events = []
def trace(frame, event, argument):
    events.append((event, frame.f_code.co_name, frame.f_lineno))
    return trace
def f(x):
    y = x + 1
    return y
sys.settrace(trace)
f(1)
sys.settrace(None)
print(events)
