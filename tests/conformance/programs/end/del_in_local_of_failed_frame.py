class Loud:
    def __del__(self):
        print("del")
def work():
    held = Loud()
    raise ValueError("holds a local")
work()
