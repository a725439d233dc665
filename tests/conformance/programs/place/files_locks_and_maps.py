import fcntl, mmap, os
with open("file", "w+b") as file:
    file.write(b"x" * 8192)
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with mmap.mmap(file.fileno(), 0) as area:
        area[0:3] = b"abc"
        print(area[:5], area.find(b"x"))
    os.truncate("file", 100)
    os.posix_fallocate(file.fileno(), 0, 4096)
    print(os.path.getsize("file"))
os.mkfifo("fifo")
print(sorted(os.listdir(".")))
