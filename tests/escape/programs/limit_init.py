# Property 10: a guest cannot lower the limits of its jail's init.
# expect: status=ok exit=0 stdout=held

import resource

for pid in range(1, 64):
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))
    except (PermissionError, ProcessLookupError):
        continue
    raise SystemExit(f"limited process {pid}")
print("held")
