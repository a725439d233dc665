import builtins
class Loud:
    def __del__(self):
        print("del")
builtins.held = Loud()
print("end of main")
