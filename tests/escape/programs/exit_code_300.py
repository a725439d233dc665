# Property 27: the exit code is what the system makes of it.
# expect: status=failed exit=44 signal=None

import sys

sys.exit(300)
