# Property 27: os._exit in a thread ends the program.
# expect: status=failed exit=9 signal=None

import os
import threading

threading.Thread(target=os._exit, args=(9,)).start()
threading.Event().wait()
