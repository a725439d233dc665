import os, sys
pid = os.fork()
if pid == 0:
    print("child ends by sys.exit")
    sys.exit(3)
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
