# Properties 4 and 5: not root, mapped to a host uid far above the host's own users, no supplementary groups.
# expect: status=ok exit=0 stdout=held
# needs: root

import os

assert os.getresuid()[0] != 0 and len(set(os.getresuid())) == 1, os.getresuid()
assert os.getresgid()[0] != 0 and len(set(os.getresgid())) == 1, os.getresgid()
assert os.getgroups() == [], os.getgroups()
for kind in ("uid", "gid"):
    rows = [list(map(int, line.split())) for line in open(f"/proc/self/{kind}_map")]
    assert rows and all(outer >= 100_000 for _, outer, _ in rows), rows
print("held")
