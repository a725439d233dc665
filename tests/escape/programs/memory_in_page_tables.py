# Property 47: touching one byte in every second megabyte costs a page and its page table.
# expect: status=out_of_memory
# limits: memory_mb=32
# needs: root

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
zero = open("/usr/bin/env", "rb")
while True:
    start = libc.mmap(None, ctypes.c_size_t(64 << 30), 1, 0x4022, -1, 0)  # readable, private, anonymous, no reserve
    assert start != 2**64 - 1
    for address in range(start, start + (64 << 30), 2 << 20):
        ctypes.string_at(address, 1)  # the zero page: only its table is paid for
