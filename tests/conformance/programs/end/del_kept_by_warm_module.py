import json
class Loud:
    def __del__(self):
        print("del")
json.held = Loud()
print("end of main")
