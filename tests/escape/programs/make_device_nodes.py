# Property 20: no device node can be made, in any directory, by any call.
# expect: status=ok exit=0 stdout=held

import os
import stat

for place in ("/work", "/tmp", "/dev/shm"):
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        for device in (os.makedev(1, 1), os.makedev(1, 3), os.makedev(254, 0), os.makedev(8, 0), os.makedev(10, 232)):
            for attempt in (
                lambda: os.mknod(f"{place}/node", kind | 0o666, device),
                lambda: os.mknod("node", kind | 0o666, device, dir_fd=os.open(place, os.O_RDONLY)),
            ):
                try:
                    attempt()
                except PermissionError:
                    continue
                raise SystemExit(f"made a device in {place}")
    os.mkfifo(f"{place}/fifo")
    os.mknod(f"{place}/file", stat.S_IFREG | 0o600)
print("held")
