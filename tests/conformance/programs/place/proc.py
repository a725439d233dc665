import os
print(os.path.realpath("/proc/self/exe").rpartition("/")[2], os.readlink("/proc/self/cwd"), os.path.exists("/proc/self/maps"))
print(open("/proc/self/comm").read().strip())
