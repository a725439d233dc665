# Property 64: exceptions that unwind past the program find no frame of Belljar.
# expect: status=failed exit=1

import sys
import threading


class Escape(BaseException):
    def __init_subclass__(cls):
        raise SystemExit(99)


threading.excepthook = sys.unraisablehook = sys.breakpointhook = lambda *a: (_ for _ in ()).throw(Escape())
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
raise Escape
