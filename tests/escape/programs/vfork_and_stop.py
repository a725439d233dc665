# Property 51: a parent that waits in vfork for a stopped child is killed, too.
# expect: status=timed_out
# limits: wall_seconds=0.5

import os
import signal
import subprocess


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


subprocess.run(["/bin/true"], preexec_fn=stop)
