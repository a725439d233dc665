# Property 13: no number of '..', by path or descriptor, with or without /proc, leaves the jail.
# expect: status=ok exit=0 stdout=held

import os

inside = os.stat("/")
root = os.path.samestat
for path in ("../" * 64, "/work/" + "../" * 64, "/proc/self/cwd/" + "../" * 64, "/proc/self/root/" + "../" * 64,
             "/dev/shm/" + "../" * 64, "/env/bin/" + "../" * 64, "/usr/lib/" + "../" * 64):
    assert root(os.stat(path), inside), path
descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
for _ in range(64):
    descriptor = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
assert root(os.fstat(descriptor), inside)
os.fchdir(descriptor)
for _ in range(64):
    os.chdir("..")
assert root(os.stat("."), inside) and os.getcwd() == "/", os.getcwd()
try:
    os.chroot("/work")
except PermissionError:
    pass
else:
    raise SystemExit("chroot worked")
# The classic: keep a descriptor outside, have the directory moved away, walk up.
os.makedirs("/work/a/b/c", exist_ok=True)
os.chdir("/work/a/b/c")
os.rename("/work/a/b", "/work/b")
for _ in range(64):
    os.chdir("..")
assert root(os.stat("."), inside)
print("held")
