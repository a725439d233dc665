import os, subprocess, sys
code = "import os; print(os.getsid(0) == os.getpid())"
subprocess.run([sys.executable, "-c", code], start_new_session=True)
pid = os.fork()
if pid == 0:
    os.setsid()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
