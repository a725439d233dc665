import sys, traceback
try:
    sys.exit("why")
except SystemExit:
    traceback.print_exc()
