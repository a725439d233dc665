import subprocess
subprocess.run("echo one > /dev/stderr; echo two | tee /dev/stderr", shell=True)
