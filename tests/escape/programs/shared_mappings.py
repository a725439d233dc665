# Property 63: no memory is shared with the process we were forked from, so nothing written here is seen there.
# expect: status=ok exit=0 stdout=held

shared = [line for line in open("/proc/self/maps") if line.split()[1][3] == "s" and "w" in line.split()[1]]
assert not shared, shared
print("held")
