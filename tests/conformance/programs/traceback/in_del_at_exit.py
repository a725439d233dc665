class Fragile:
    def __del__(self):
        raise ValueError("in __del__ at exit")
x = Fragile()
print("end of main")
