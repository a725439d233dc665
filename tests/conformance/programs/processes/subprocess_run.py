import subprocess, sys
result = subprocess.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], capture_output=True, text=True)
print(result.returncode, repr(result.stdout), repr(result.stderr))
