# Property 51: the main thread has ended, another one has not.
# expect: status=timed_out stdout=done
# limits: wall_seconds=0.3

import threading
import time

threading.Thread(target=time.sleep, args=(1000,)).start()
print("done", flush=True)
