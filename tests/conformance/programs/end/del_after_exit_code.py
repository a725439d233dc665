import sys
class Loud:
    def __del__(self):
        print("del")
a = Loud()
sys.exit(5)
