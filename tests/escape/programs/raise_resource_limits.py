# Property 10: a program can raise no limit, its own or another's.
# expect: status=ok exit=0 stdout=held

import resource

names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
for name in names:
    which = getattr(resource, name)
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        continue
    for wanted in (hard + 1, resource.RLIM_INFINITY):
        for call in (resource.setrlimit, lambda *a: resource.prlimit(0, *a), lambda *a: resource.prlimit(1, *a)):
            try:
                call(which, (soft, wanted))
            except (ValueError, PermissionError, ProcessLookupError):
                continue
            if resource.getrlimit(which) == (soft, hard):
                continue  # setting the core limit always pretends to succeed
            raise SystemExit(f"{name} went from {hard} to {wanted}")
for name, most in {"CORE": 1, "NOFILE": 4096, "MEMLOCK": 1 << 20, "RTPRIO": 0, "NICE": 0, "FSIZE": 1 << 33}.items():
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    assert 0 <= hard <= most, (name, hard)
print("held")
