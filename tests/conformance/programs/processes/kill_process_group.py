import os, signal, subprocess, time
child = subprocess.Popen("sleep 30 & sleep 30", shell=True, start_new_session=True)
time.sleep(0.05)
os.killpg(child.pid, signal.SIGTERM)
print(child.wait())
