# Property 27: a crash is a crash, and leaves no core file where the next program could find it.
# expect: status=crashed exit=None signal=SIGSEGV

import ctypes

ctypes.string_at(0)
