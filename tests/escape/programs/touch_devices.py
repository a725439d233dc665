# Property 15: the device nodes are the host's own; a program cannot even change their times.
# expect: status=ok exit=0 stdout=held

import os

for name in ("null", "zero", "full", "random", "urandom"):
    path = f"/dev/{name}"
    before = os.stat(path).st_mtime_ns
    for attempt in (
        lambda: os.utime(path),
        lambda: os.utime(path, (1, 1)),
        lambda: os.utime(os.open(path, os.O_RDWR)),
        lambda: os.chmod(path, 0o600),
        lambda: os.chown(path, os.getuid(), os.getgid()),
        lambda: os.setxattr(path, "user.note", b"x"),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise SystemExit(f"changed {path}")
    assert os.stat(path).st_mtime_ns == before
print("held")
