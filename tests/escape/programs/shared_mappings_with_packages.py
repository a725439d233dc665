# Property 63: the same with packages imported.
# expect: status=ok exit=0 stdout=held
# needs: root

import numpy

shared = [line for line in open("/proc/self/maps") if line.split()[1][3] == "s" and "w" in line.split()[1]]
assert not shared, shared
print("held")
