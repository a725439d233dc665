for line in open("/proc/self/status"):
    if line.startswith(("SigBlk", "SigIgn", "SigCgt", "SigPnd", "Threads")):
        print(line.strip())
