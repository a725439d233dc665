# Property 27: as under a plain interpreter, an exit function that fails does not change the exit code.
# expect: status=ok exit=0 signal=None stdout=done

import atexit

atexit.register(lambda: 1 / 0)
print("done")
