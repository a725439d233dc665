import os, signal, time
got = []
signal.signal(signal.SIGCHLD, lambda number, frame: got.append(number))
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
deadline = time.monotonic() + 5
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
print(got == [signal.SIGCHLD])
