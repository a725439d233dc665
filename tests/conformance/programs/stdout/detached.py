import sys
raw = sys.stdout.detach()
raw.write(b"through the detached buffer\n")
raw.flush()
