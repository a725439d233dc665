import enum, sys
class Code(enum.IntEnum):
    BAD = 4
sys.exit(Code.BAD)
