import sys
def hook(unraisable):
    print("hook:", unraisable.exc_type.__name__, unraisable.exc_value, unraisable.err_msg)
sys.unraisablehook = hook
class Fragile:
    def __del__(self):
        raise ValueError("in __del__")
Fragile()
print("goes on")
