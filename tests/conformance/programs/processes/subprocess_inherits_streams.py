import subprocess, sys
print("first", flush=True)
subprocess.run([sys.executable, "-c", "import sys; print('second'); print('error', file=sys.stderr)"])
print("third")
