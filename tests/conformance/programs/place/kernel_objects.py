import os, select
with select.epoll() as poll:
    print(poll.poll(0))
memory = os.memfd_create("name")
print(os.write(memory, b"abc"), os.lseek(memory, 0, 0), os.read(memory, 5))
counter = os.eventfd(3)
print(os.eventfd_read(counter))
read, write = os.pipe2(os.O_CLOEXEC)
print(os.sendfile(write, memory, 0, 3), os.read(read, 5), len(os.getrandom(4)), os.statvfs(".").f_bsize > 0)
os.close(os.pidfd_open(os.getpid()))
os.sync()
