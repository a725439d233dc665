# Property 51: every signal ignored, blocked and handled, timers cancelled.
# expect: status=timed_out
# limits: wall_seconds=0.3

import signal

for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    signal.setitimer(which, 0)
signal.alarm(0)
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
