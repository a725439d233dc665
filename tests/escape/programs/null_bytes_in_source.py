# Property 68: every reader refuses source with NUL bytes: the compiler, an import, another interpreter.
# expect: status=ok exit=0 stdout=held

import importlib
import subprocess
import sys

source = b"raise SystemExit(0)\0print(2)\n"
try:
    compile(source, "nul", "exec")
except (SyntaxError, ValueError):
    pass
open("/work/nul.py", "wb").write(source)
try:
    importlib.import_module("nul")
except (SyntaxError, ValueError):
    pass
subprocess.run([sys.executable, "/work/nul.py"], capture_output=True)
print("held")
