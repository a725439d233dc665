# Property 27: a SystemExit with a hostile code object still ends the program.
# expect: status=failed exit=1 signal=None


class Code:
    def __str__(self):
        raise SystemExit(0)

    def __eq__(self, other):
        return True

    def __index__(self):
        return 0

    def __int__(self):
        return 0

    __hash__ = None


raise SystemExit(Code())
