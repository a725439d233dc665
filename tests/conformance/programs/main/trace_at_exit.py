import os, sys
basename = os.path.basename
def trace(frame, event, argument):
    sys.stdout.write(f"{event} {frame.f_code.co_name} {basename(frame.f_code.co_filename)}\n")
sys.settrace(trace)
def f():
    pass
f()
