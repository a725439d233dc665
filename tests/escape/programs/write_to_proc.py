# Property 16: a program can write nothing in /proc that changes how the kernel treats a process.
# expect: status=ok exit=0 stdout=held

import os

for name in ("oom_score_adj", "oom_adj", "uid_map", "gid_map", "setgroups", "mem", "attr/current", "attr/exec", "autogroup",
             "clear_refs", "coredump_filter", "timens_offsets", "loginuid", "sched", "timerslack_ns", "projid_map", "comm"):
    for process in ("self", "thread-self", "1"):
        try:
            os.open(f"/proc/{process}/{name}", os.O_WRONLY)
        except OSError:
            continue
        raise SystemExit(f"opened {process}/{name} to write")
print("held")
