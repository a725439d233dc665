# Property 58: no scheduling class, priority or affinity that takes time from others.
# expect: status=ok exit=0 stdout=held

import ctypes
import os
import platform

for policy, priority in ((os.SCHED_FIFO, 1), (os.SCHED_RR, 99), (6, 0), (os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 1)):
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        continue
    raise SystemExit(f"policy {policy}")
before = os.getpriority(os.PRIO_PROCESS, 0)
assert before >= 0, before
os.setpriority(os.PRIO_PROCESS, 0, before + 1)
for which, who in ((os.PRIO_PROCESS, 0), (os.PRIO_PGRP, 0), (os.PRIO_USER, 0), (os.PRIO_PROCESS, 1), (os.PRIO_USER, os.getuid())):
    try:
        os.setpriority(which, who, -5)
    except OSError:
        continue
    raise SystemExit("a higher priority")
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(251 if platform.machine() == "x86_64" else 30, 1, 0, 1 << 13) == -1, "ioprio_set"
print("held")
