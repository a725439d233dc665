import abc, typing
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    pass
print(Box[int], typing.Optional[int], typing.get_args(typing.Union[int, str]))
Shape()
