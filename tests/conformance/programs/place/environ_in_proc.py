print(sorted(each.split(b"=")[0] for each in open("/proc/self/environ", "rb").read().split(b"\0") if each))
