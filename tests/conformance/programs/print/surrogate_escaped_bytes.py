import os, sys
sys.stdout.flush()
sys.stdout.buffer.write(os.fsencode("name-\udcff") + b"\n")
print(ascii("\udcff"))
