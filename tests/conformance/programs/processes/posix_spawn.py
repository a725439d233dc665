import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "print('spawned')"], os.environ)
print(os.waitpid(pid, 0)[1])
