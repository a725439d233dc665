# Property 67: the program is not pid 1, for which signals work differently.
# expect: status=crashed signal=SIGUSR1

import os
import signal

assert os.getpid() != 1
os.kill(os.getpid(), signal.SIGUSR1)
