# Property 64: no standard streams at all.
# expect: status=ok exit=0 stdout=begun

import sys

print("begun", flush=True)
del sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__
