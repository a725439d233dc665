# Properties 49 and 58: nobody can hide from the kernel's choice of whom to end, nor point at others.
# expect: status=ok exit=0 stdout=held

import os

for name in ("oom_score_adj", "oom_adj"):
    for value in ("-1000", "-1", "0", "1000"):
        try:
            open(f"/proc/self/{name}", "w").write(value)
        except OSError:
            continue
        raise SystemExit(f"{name}={value}")
assert int(open("/proc/self/oom_score_adj").read()) >= 0
print("held")
