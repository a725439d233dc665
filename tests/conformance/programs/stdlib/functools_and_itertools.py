import functools, itertools, operator
@functools.singledispatch
def show(value):
    return "object"
@show.register
def _(value: int):
    return "int"
print(show(1), show("x"), functools.reduce(operator.mul, range(1, 6)), list(itertools.pairwise("abcd")))
print(functools.partial(int, base=2)("101"), functools.cached_property.__name__)
