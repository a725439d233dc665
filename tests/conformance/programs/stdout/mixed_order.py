import os, sys
print("text first")
sys.stdout.flush()
os.write(1, b"descriptor second\n")
sys.stdout.buffer.write(b"buffer third\n")
sys.stdout.flush()
print("text fourth")
