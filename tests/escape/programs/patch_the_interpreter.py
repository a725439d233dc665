# Property 60: a program replaces functions that Belljar calls at the end; the exit code still comes from the kernel.
# expect: status=failed exit=6 stdout=begun

import atexit
import gc
import json
import os
import signal
import sys

print("begun", flush=True)
real_exit = os._exit
for module in (os, sys, json, signal, gc, atexit):
    for name in dir(module):
        if callable(getattr(module, name)) and not name.startswith("__") and not isinstance(getattr(module, name), type):
            try:
                setattr(module, name, lambda *a, **k: None)
            except (AttributeError, TypeError):
                pass
real_exit(6)
