import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        first = os.getppid()
        while os.getppid() == first:
            time.sleep(0.01)
        os.write(write, b"adopted")
        os._exit(0)
    time.sleep(0.05)
    os._exit(0)
os.wait()
print(os.read(read, 100))
