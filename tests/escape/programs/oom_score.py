# Properties 49 and 58: no program can influence which process the kernel kills when memory runs out.
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
