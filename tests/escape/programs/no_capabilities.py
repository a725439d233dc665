# Property 1: no capability in any set, and none can be regained.
# expect: status=ok exit=0 stdout=held

import ctypes

for line in open("/proc/self/status"):
    if line.startswith("Cap"):
        assert int(line.split()[1], 16) == 0, line
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
sets = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
assert libc.capset(header, sets) == -1, "capset gave capabilities"
assert libc.prctl(47, 2, 21, 0, 0) == -1, "an ambient capability was raised"  # PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN
assert libc.prctl(8, 1, 0, 0, 0) == -1, "keepcaps was set"
print("held")
