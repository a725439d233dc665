import os, signal, subprocess
child = subprocess.Popen(["sleep", "30"])
child.send_signal(signal.SIGKILL)
print(child.wait())
