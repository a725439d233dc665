import resource
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime < 2, usage.ru_maxrss > 1000, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 1)
