import os, sys
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    print("child")
    sys.stdout.flush()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
