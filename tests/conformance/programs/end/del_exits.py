import os
class Last:
    def __del__(self):
        os._exit(9)
a = Last()
