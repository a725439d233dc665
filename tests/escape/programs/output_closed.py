# Property 37: without standard output there is nothing to read, and nothing breaks.
# expect: status=ok exit=0 stdout=""

import os

os.close(1)
os.close(2)
os.close(0)
