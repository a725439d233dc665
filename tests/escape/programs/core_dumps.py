# Property 36: a crash writes no core file, and a program cannot change the limit: with 0 the host's handler would start.
# expect: status=ok exit=0 stdout=held

import os
import resource
import signal

assert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)
for wanted in ((0, 1), (0, 0), (1, 1)):
    resource.setrlimit(resource.RLIMIT_CORE, wanted)  # pretends to succeed
    for process in (0, os.getpid()):
        try:
            resource.prlimit(process, resource.RLIMIT_CORE, wanted)
        except PermissionError:
            continue
        raise SystemExit("the limit was changed")
assert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)
with open("/proc/self/coredump_filter") as file:
    assert int(file.read(), 16) == 0
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
status = os.waitpid(child, 0)[1]
assert os.WTERMSIG(status) == signal.SIGSEGV and not os.WCOREDUMP(status)
assert os.listdir("/work") == ["main.py"] and os.listdir("/tmp") == [], (os.listdir("/work"), os.listdir("/tmp"))
print("held")
