# Property 27: unlimited recursion overflows only the program's own stack.
# expect: status=crashed exit=None signal=SIGSEGV

import sys

sys.setrecursionlimit(10**9)


class Deep:
    def __repr__(self):
        return repr(self)

    def __getattr__(self, name):
        return getattr(self, name)


def down(n):
    return [*map(down, [n + 1])]


down(0)
