# Property 50: a program can start exactly as many processes and threads as its limit.
# expect: status=ok exit=0 stdout=held
# limits: processes=20
# needs: root

import os
import signal
import threading

children = []
try:
    while len(children) < 1000:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except OSError:
    pass
assert 18 <= len(children) <= 19, len(children)
for child in children[:10]:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
waiting, threads = threading.Event(), 0
try:
    while threads < 1000:
        threading.Thread(target=waiting.wait, daemon=True).start()
        threads += 1
except RuntimeError:
    pass
assert 9 <= threads <= 11, threads
print("held")
