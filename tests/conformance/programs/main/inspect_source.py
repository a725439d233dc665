import inspect
def area(width, height):
    # a comment inside
    return width * height
class Shape:
    def grow(self):
        return (lambda: 1)
print(inspect.getsource(area))
print(inspect.getsource(Shape))
print(inspect.getsource(Shape.grow))
print(inspect.getfile(area), inspect.getsourcefile(Shape), inspect.getmodule(area).__name__)
print(inspect.getsourcelines(area)[1], inspect.getcomments(area), inspect.signature(area))
import __main__
print(inspect.getsource(__main__)[:14])
