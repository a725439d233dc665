import os
print(os.nice(0) >= 0, os.sched_setaffinity(0, os.sched_getaffinity(0)), os.sched_yield(), os.getpriority(os.PRIO_PROCESS, 0) >= 0)
print(os.sched_getscheduler(0), os.times().user >= 0)
