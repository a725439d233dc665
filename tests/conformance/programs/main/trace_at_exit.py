import sys
def trace(frame, event, argument):
    print(event, frame.f_code.co_name, frame.f_code.co_filename[-20:])
sys.settrace(trace)
def f():
    pass
f()
