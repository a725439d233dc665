# Properties 2 and 3: no_new_privs and the filter are on, in threads and after an exec, too.
# expect: status=ok exit=0 stdout=held

import ctypes
import subprocess
import threading

libc = ctypes.CDLL(None, use_errno=True)


def check():
    assert libc.prctl(39, 0, 0, 0, 0) == 1, "no_new_privs is off"
    assert libc.prctl(21, 0, 0, 0, 0) == 2, "no seccomp filter"
    lines = dict(line.split(":", 1) for line in open("/proc/thread-self/status"))
    seen.append((lines["NoNewPrivs"].strip(), lines["Seccomp"].strip()))


seen = []
check()
thread = threading.Thread(target=check)
thread.start()
thread.join()
assert seen == [("1", "2")] * 2, seen
after_exec = subprocess.run(["/bin/grep", "-E", "^(NoNewPrivs|Seccomp):", "/proc/self/status"], capture_output=True, text=True)
assert after_exec.stdout.split() == ["NoNewPrivs:", "1", "Seccomp:", "2"], after_exec
assert libc.prctl(38, 0, 0, 0, 0) == -1, "no_new_privs was taken back"
print("held")
