import subprocess, sys
result = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True)
print(result.returncode, result.stdout.split()[0], result.stderr)
