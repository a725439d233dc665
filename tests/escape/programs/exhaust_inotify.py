# Property 54: watchers are counted for the owner of the jail's user namespace, too; one program gets few of them.
# expect: status=ok exit=0 stdout=held

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
instances = 0
while instances < 1000 and libc.inotify_init() >= 0:
    instances += 1
assert instances <= 32, instances
print("held")
