kept = []
class Phoenix:
    def __del__(self):
        print("del")
        kept.append(self)
bird = Phoenix()
