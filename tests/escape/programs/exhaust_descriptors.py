# Property 54: open files are limited, also by number of processes times theirs.
# expect: status=ok exit=0 stdout=held

import errno
import os

opened = []
try:
    while len(opened) < 100_000:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE, error
assert len(opened) < 5000, len(opened)
os.closerange(3, opened[-1] + 1)
print("held")
