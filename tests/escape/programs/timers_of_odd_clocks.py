# Property 32: no timer works on a clock of CPU time (CVE-2025-38352), or on one that wakes the machine.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno

libc = ctypes.CDLL(None, use_errno=True)
for clock in (2, 3, 8, 9, 11, ~1 << 3 | 2, ~0 << 3 | 6):
    for name, call in {
        "timer_create": lambda: libc.timer_create(clock, None, ctypes.byref(ctypes.c_void_p())),
        "timerfd_create": lambda: libc.timerfd_create(clock, 0),
    }.items():
        assert call() == -1 and ctypes.get_errno() == errno.EINVAL, (name, clock)
    slept = libc.clock_nanosleep(clock, 0, (ctypes.c_long * 2)(0, 1), None)
    assert slept == errno.EINVAL or clock == 3, (clock, slept)  # libc itself refuses the clock of a thread
for clock in (0, 1, 7):
    assert libc.timer_create(clock, None, ctypes.byref(ctypes.c_void_p())) == 0
    assert libc.timerfd_create(clock, 0) >= 0
    assert libc.clock_nanosleep(clock, 0, (ctypes.c_long * 2)(0, 1), None) == 0
print("held")
