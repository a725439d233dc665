# Property 37: a program without standard output has no output and works.
# expect: status=ok exit=0 stdout=""

import os

os.close(1)
os.close(2)
os.close(0)
