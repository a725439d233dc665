# Properties 61 and 72: an interpreter started by the program finds nothing of Belljar, though its import path names it.
# expect: status=ok exit=0 stdout=held

import os
import subprocess
import sys

os.makedirs("/tmp/.belljar", exist_ok=True)
open("/tmp/.belljar/sitecustomize.py", "w").write("raise SystemExit(99)")
asked = "import sys; print('belljar' in sys.modules, 'sitecustomize' in sys.modules, sys.flags.isolated)"
child = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
assert child.stdout.split() == ["False", "False", "0"], child
print("held")
