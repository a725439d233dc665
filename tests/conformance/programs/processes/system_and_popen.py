import os, sys
print(os.system("exit 3") >> 8)
print(os.popen("echo from popen").read())
sys.stdout.flush()
os.system("echo from system; echo to stderr >&2")
