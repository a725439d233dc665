import dataclasses
@dataclasses.dataclass(order=True, frozen=True)
class Point:
    x: int
    y: int = 0
    tags: "list[str]" = dataclasses.field(default_factory=list, compare=False)
print(Point(1), Point(1) < Point(2), dataclasses.asdict(Point(3, 4, ["a"])), hash(Point(1)) == hash(Point(1)))
try:
    Point(1).x = 2
except dataclasses.FrozenInstanceError as error:
    print(repr(error))
print(dataclasses.replace(Point(1), y=5))
