# Property 21: a program can name only its own processes, whatever the number.
# expect: status=ok exit=0 stdout=held
# give: canaries

import os

own = os.getpid()
reached = []
for pid in [*range(2, 33_000), 2**22 - 1, int(os.environ["CANARY_PID"])]:
    if pid != own:
        try:
            os.kill(pid, 0)
            reached.append(pid)
        except ProcessLookupError:
            pass
        except PermissionError:
            reached.append(pid)
assert not reached, reached
assert os.getppid() == 0, os.getppid()
assert own != 1
print("held")
