import pickle
class Point:
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return self.x == other.x
def function():
    return 1
print(pickle.loads(pickle.dumps(Point(3))) == Point(3), pickle.loads(pickle.dumps(function)) is function)
print(pickle.dumps(Point, protocol=0))
try:
    pickle.dumps(lambda: 1)
except Exception as error:
    print(type(error).__name__, error)
