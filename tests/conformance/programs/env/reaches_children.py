import os, subprocess, sys
os.environ["SET"] = "by the program"
subprocess.run([sys.executable, "-c", "import os; print(os.environ['SET'], os.environ['GIVEN'])"])
print(subprocess.run("env | sort | grep -v -e ^_= -e ^SHLVL= -e ^PWD= -e ^OLDPWD=", shell=True, capture_output=True, text=True).stdout)
