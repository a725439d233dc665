import subprocess
subprocess.Popen("sleep 0.3; echo late", shell=True)
print("the program ends")
