# Property 27: the program may exec another binary; its output and exit code count.
# expect: status=failed exit=5 signal=None stdout=shell

import os

os.execv("/bin/sh", ["sh", "-c", "echo shell; exit 5"])
