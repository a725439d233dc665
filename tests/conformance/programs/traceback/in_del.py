class Fragile:
    def __del__(self):
        raise ValueError("in __del__")
x = Fragile()
del x
print("goes on")
