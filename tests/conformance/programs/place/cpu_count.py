import os
print(os.cpu_count() >= 1, len(os.sched_getaffinity(0)) >= 1, len(os.getloadavg()))
