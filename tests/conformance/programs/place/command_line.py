print(open("/proc/self/cmdline").read().split("\0"))
