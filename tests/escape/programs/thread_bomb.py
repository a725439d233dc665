# Property 50: threads count like processes.
# expect: status=timed_out
# limits: wall_seconds=0.7
# needs: root

import threading
import time


def breed():
    while True:
        try:
            threading.Thread(target=breed).start()
        except RuntimeError:
            time.sleep(0.01)


breed()
