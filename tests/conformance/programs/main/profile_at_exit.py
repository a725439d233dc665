import sys
def profile(frame, event, argument):
    if event == "call":
        print("call", frame.f_code.co_name, frame.f_code.co_filename[-7:])
sys.setprofile(profile)
def f():
    pass
f()
