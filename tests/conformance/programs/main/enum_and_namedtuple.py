import collections, enum, typing
class Colour(enum.Enum):
    RED = enum.auto()
    BLUE = enum.auto()
Point = collections.namedtuple("Point", "x y")
class Named(typing.NamedTuple):
    a: int
    b: str = "b"
print(Colour.RED, list(Colour), Point(1, 2), Point.__module__, Named(1), Colour.__module__, Named.__module__)
