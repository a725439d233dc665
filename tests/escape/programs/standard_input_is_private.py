# Properties 45 and 63: flags set on descriptor 0 end with the program; it shares no open file with others.
# expect: status=ok exit=0 stdout=held
# run: again

import fcntl
import os

assert not fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC), oct(fcntl.fcntl(0, fcntl.F_GETFL))
assert fcntl.fcntl(0, 11) == 0, "F_GETSIG"
assert fcntl.fcntl(0, fcntl.F_GETOWN) == 0, "F_GETOWN"
fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
fcntl.fcntl(0, 10, 34)  # F_SETSIG
fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
print("held")
