import sys
class Reason:
    def __str__(self):
        raise ValueError("no text for this")
sys.exit(Reason())
