# Properties 23 and 25: a program can read nothing of its jail's init.
# expect: status=ok exit=0 stdout=held

import os

for name in ("environ", "mem", "maps", "fd", "fd/0", "fd/3", "cwd", "root", "exe", "ns/pid", "status", "cmdline", "stack",
             "syscall", "auxv", "pagemap", "io", "map_files", "personality", "wchan", "task/1/fd"):
    try:
        os.stat(f"/proc/1/{name}")
    except OSError:
        continue
    raise SystemExit(f"/proc/1/{name}")
print("held")
