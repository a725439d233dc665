class Loud:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("del", self.name)
def f(held=Loud("default")):
    return held
def make():
    held = Loud("closure")
    return lambda: held
g = make()
print("end of main")
