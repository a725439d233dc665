import sys
value = "still there"
class Looks:
    def __del__(self):
        print(value, sys is not None, print is not None, __name__)
looks = Looks()
