import os, stat
for descriptor in (1, 2):
    print(stat.S_ISFIFO(os.fstat(descriptor).st_mode), os.isatty(descriptor))
print(os.path.exists("/dev/stdout"), os.path.exists("/dev/fd/1"))
