import subprocess
try:
    subprocess.run(["sleep", "10"], timeout=0.2)
except subprocess.TimeoutExpired as error:
    print(error.cmd)
