class Loud:
    def __init__(self, name):
        self.name, self.me = name, self
    def __del__(self):
        print("del", self.name)
a = Loud("cycle")
print("end of main")
