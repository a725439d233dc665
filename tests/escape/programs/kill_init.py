# Properties 22 and 25: init of the jail cannot be signalled, stopped or waited for by any call.
# expect: status=ok exit=0 stdout=held

import ctypes
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, signal.SIGRTMIN, 0):
    for attempt in (
        lambda: os.kill(1, number),
        lambda: os.killpg(1, number),
        lambda: signal.pidfd_send_signal(os.pidfd_open(1), number),
    ):
        try:
            attempt()
        except (PermissionError, ProcessLookupError):
            continue
        raise SystemExit(f"signal {number} was sent to init")
    assert libc.syscall(200, 1, int(number)) == -1, "tkill"
    assert libc.sigqueue(1, int(number), None) == -1, "sigqueue"
print("held")
