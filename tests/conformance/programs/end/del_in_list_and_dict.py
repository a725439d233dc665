class Loud:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("del", self.name)
things = [Loud(number) for number in range(3)]
by_name = {"x": Loud("x"), "y": Loud("y")}
print("end of main")
