# Property 65: __main__ is clean, no frame is above it, and no object of Belljar can be found.
# expect: status=ok exit=0 stdout=held

import sys

assert sys._getframe().f_back is None
names = set(globals()) - {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__annotations__", "__builtins__",
                          "__file__", "__cached__", "sys", "names"}
assert not names, names
assert __name__ == "__main__" and __file__ == "/work/main.py", __file__
assert sys.argv == ["main.py"] or sys.argv == ["/work/main.py"], sys.argv
assert not [name for name in sys.modules if "belljar" in name and name != "_belljar_displays"]
assert len(sys._current_frames()) == 1
print("held")
