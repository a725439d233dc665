# Property 22: kill(-1) reaches only the program's own children.
# expect: status=ok exit=0 stdout=held

import os
import signal

child = os.fork()
if child == 0:
    signal.pause()
try:
    os.kill(-1, signal.SIGKILL)
except PermissionError:
    os.kill(child, signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
print("held")
