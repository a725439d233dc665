# Property 27.
# expect: status=crashed exit=None signal=SIGILL

import os
import signal

os.kill(os.getpid(), signal.SIGILL)
