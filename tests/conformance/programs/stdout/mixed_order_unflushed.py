import os
print("text first")
os.write(1, b"descriptor second\n")
