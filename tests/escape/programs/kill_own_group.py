# Property 22: kill(0) ends the program itself, and the caller sees that.
# expect: status=crashed exit=None signal=SIGKILL stdout=begun

import os
import signal

print("begun", flush=True)
os.kill(0, signal.SIGKILL)
