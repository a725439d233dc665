# Property 24: stopped, signal-proof, re-parented and busy descendants all end with the program.
# expect: status=ok exit=0 stdout=done
# limits: wall_seconds=20

import ctypes
import os
import signal
import time

libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
ready, told = os.pipe()


def descend(what):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            os.write(told, b"x")
            what()
            os._exit(0)
        os._exit(0)


def spin():
    while True:
        pass


def respawn():
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.005)


descend(lambda: os.kill(os.getpid(), signal.SIGSTOP))
descend(spin)
descend(respawn)
descend(lambda: os.execv("/bin/sleep", ["sleep", "1000"]))
descend(lambda: os.read(os.pipe()[0], 1))
left = 5
while left:
    left -= len(os.read(ready, left))
print("done", flush=True)
os._exit(0)
