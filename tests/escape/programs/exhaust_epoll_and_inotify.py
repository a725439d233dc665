# Property 54: kernel objects that hide behind one descriptor.
# expect: status=ok exit=0 stdout=held
# limits: wall_seconds=20

import ctypes
import os
import select

libc = ctypes.CDLL(None, use_errno=True)
watch, made = libc.inotify_init(), 0
for number in range(20_000):
    path = b"/work/%d" % number
    os.close(os.open(path, os.O_CREAT))
    if libc.inotify_add_watch(watch, path, 2) < 0:
        break
timers = 0
buffer = ctypes.c_void_p()
while timers < 50_000 and libc.timer_create(0, None, ctypes.byref(buffer)) == 0:
    timers += 1
assert timers < 50_000, timers
polls = [select.epoll() for _ in range(500)]
print("held")
