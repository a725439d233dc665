import subprocess, sys
print(sys.stdin.buffer.raw.readline())
sys.stdout.flush()
subprocess.run(["cat"])
