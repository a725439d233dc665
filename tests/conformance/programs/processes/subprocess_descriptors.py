import os, subprocess, sys
code = "import os; print(sorted(int(each) for each in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + each)))"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False).stdout)
