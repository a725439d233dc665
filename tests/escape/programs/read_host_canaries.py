# Property 12: files that any user of the host may read do not exist in the jail, by any path, and are not mounted.
# expect: status=ok exit=0 stdout=held
# give: canaries

import os

paths = os.environ["CANARY_FILES"].split(":")
prefixes = ["", "/proc/self/root", "/proc/self/cwd/../" + "../" * 64, "/proc/1/root", "/proc/2/root", "/proc/thread-self/root",
            "/../../..", "//", "/dev/fd/../../../../..", "/proc/self/task/1/root", "/usr/../..", "/env/../.."]
for path in paths:
    for prefix in prefixes:
        try:
            print(open(prefix + path).read())
        except OSError:
            continue
        raise SystemExit(f"read {prefix + path}")
    assert not os.path.lexists(path), path
for path in ("/etc/shadow", "/var", "/home", "/boot", "/run", "/srv", "/mnt", "/media", "/opt/secrets", "/etc/machine-id",
             "/etc/ssh", "/var/run/docker.sock", "/run/docker.sock", "/.dockerenv"):
    assert not os.path.lexists(path), path
print("held")
