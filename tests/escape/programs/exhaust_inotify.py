# Property 54: inotify is also counted for the owner of the jail's user namespace; one program gets a small share.
# expect: status=ok exit=0 stdout=held

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
instances = 0
while instances < 1000 and libc.inotify_init() >= 0:
    instances += 1
assert instances <= 32, instances
print("held")
