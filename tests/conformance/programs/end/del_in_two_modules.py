import holds_loud, holds_loud_too
class Loud:
    def __del__(self):
        print("del in main")
a = Loud()
print("end of main")
