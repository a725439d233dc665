# Property 11: everything but three directories is read-only, whatever the permission bits.
# expect: status=ok exit=0 stdout=held

import os
import sys
import sysconfig

stdlib = sysconfig.get_paths()["stdlib"]
places = ["/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/bin", "/lib", "/env", "/env/bin", "/proc", "/dev",
          "/proc/self", "/etc/ssl/certs", stdlib, os.path.dirname(sys.executable), *filter(os.path.isdir, sys.path[1:])]
for place in places:
    for attempt in (
        lambda: open(f"{place}/planted", "w"),
        lambda: os.mkdir(f"{place}/planted"),
        lambda: os.symlink("/tmp", f"{place}/planted"),
        lambda: os.mkfifo(f"{place}/planted"),
        lambda: os.chmod(place, 0o777),
        lambda: os.utime(place),
        lambda: os.rename(place, "/tmp/stolen"),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise SystemExit(f"changed {place}")
for path in ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/env/pyvenv.cfg", f"{stdlib}/os.py"):
    for attempt in (
        lambda: open(path, "a"),
        lambda: open(path, "r+"),
        lambda: os.truncate(path, 0),
        lambda: os.unlink(path),
        lambda: os.chmod(path, 0o777),
        lambda: os.utime(path),
        lambda: os.link(path, "/work/linked"),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise SystemExit(f"changed {path}")
print("held")
