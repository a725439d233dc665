class Loud:
    def __del__(self):
        print("del")
class Holder:
    held = Loud()
print("end of main")
