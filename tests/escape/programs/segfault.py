# Property 27: a crash is reported as such, and leaves no core file for the next program.
# expect: status=crashed exit=None signal=SIGSEGV

import ctypes

ctypes.string_at(0)
