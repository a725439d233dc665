import os
print("printed once, before the fork")
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
