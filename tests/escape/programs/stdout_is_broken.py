# Property 64: a hostile standard output object does not reach Belljar's code.
# expect: status=ok exit=0 stdout=begun

import sys

print("begun", flush=True)


class Broken:
    closed = False
    errors = encoding = "utf-8"

    def write(self, text):
        raise SystemExit(99)

    def flush(self):
        pass


sys.stdout = sys.stderr = sys.__stdout__ = Broken()
