# Property 27: the program may become another one; its output and exit code count.
# expect: status=failed exit=5 signal=None stdout=shell

import os

os.execv("/bin/sh", ["sh", "-c", "echo shell; exit 5"])
