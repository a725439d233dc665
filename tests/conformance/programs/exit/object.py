import sys
class Reason:
    def __str__(self):
        return "a reason"
sys.exit(Reason())
