import subprocess
child = subprocess.Popen(["sleep", "0.1"])
print("started")
