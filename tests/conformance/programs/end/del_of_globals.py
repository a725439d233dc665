class Loud:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("del", self.name)
a = Loud("a")
_private = Loud("_private")
b = Loud("b")
print("end of main")
