import os, pty
parent, child = pty.openpty()
os.write(child, b"through a terminal")
print(os.read(parent, 100), os.isatty(child))
