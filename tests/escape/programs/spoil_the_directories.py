# Properties 45 and 54: a program does not own its writable directories and cannot change their attributes.
# expect: status=ok exit=0 stdout=held
# run: again
# needs: root

import fcntl
import os
import struct

PLACES = ("/work", "/tmp", "/dev/shm")


def refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError:
        return True
    return False


for place in PLACES:
    facts = os.stat(place)
    assert (oct(facts.st_mode), facts.st_uid, facts.st_gid) == ("0o41777", 0, 0), facts
    assert os.listxattr(place) == [], os.listxattr(place)
    opened = os.open(place, os.O_RDONLY)
    assert refused(os.chmod, place, 0o777) and refused(os.fchmod, opened, 0o41700), "mode"
    assert refused(os.chown, place, os.getuid(), -1) and refused(os.chown, place, -1, os.getgid()), "owner"
    assert refused(os.setxattr, place, "user.left", b"x"), "label"
    assert refused(os.setxattr, place, "system.posix_acl_default", bytes.fromhex("02000000")), "access list"
    assert refused(os.utime, place, (1, 1)), "times"
    assert refused(fcntl.ioctl, opened, 0x40086602, struct.pack("l", 0x30)), "immutable, or for appending only"
    assert refused(os.rename, place, f"{place}-old") and refused(os.rmdir, place), "name"
print("held")
