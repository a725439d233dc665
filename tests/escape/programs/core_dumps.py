# Property 36: a crash writes no core file, and the limit cannot be raised.
# expect: status=ok exit=0 stdout=held

import os
import resource
import signal

assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
status = os.waitpid(child, 0)[1]
assert os.WTERMSIG(status) == signal.SIGSEGV and not os.WCOREDUMP(status)
assert os.listdir("/work") == ["main.py"] and os.listdir("/tmp") == [], (os.listdir("/work"), os.listdir("/tmp"))
print("held")
