# Property 63: a program shares no memory with the zygote, so the zygote sees nothing that it writes.
# expect: status=ok exit=0 stdout=held

shared = [line for line in open("/proc/self/maps") if line.split()[1][3] == "s" and "w" in line.split()[1]]
assert not shared, shared
print("held")
