# Property 27: signals above 31 have names, too.
# expect: status=crashed exit=None signal=SIGRTMIN+2

import os
import signal

os.kill(os.getpid(), signal.SIGRTMIN + 2)
