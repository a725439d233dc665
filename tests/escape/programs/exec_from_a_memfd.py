# Property 27: a binary without a name runs behind the same walls.
# expect: status=ok exit=0 stdout=held

import os
import shutil

descriptor = os.memfd_create("binary")
with open("/bin/grep", "rb") as source, open(os.dup(descriptor), "wb") as target:
    shutil.copyfileobj(source, target)
child = os.fork()
if child == 0:
    os.execve(descriptor, ["grep", "-qE", "^Seccomp:.2", "/proc/self/status"], {})
assert os.waitpid(child, 0)[1] == 0
print("held")
