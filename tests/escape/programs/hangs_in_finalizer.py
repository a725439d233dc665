# Property 51.
# expect: status=timed_out stdout=done
# limits: wall_seconds=0.3

import time


class Slow:
    def __del__(self, sleep=time.sleep):
        while True:
            sleep(1)


kept = Slow()
print("done", flush=True)
