"""
>>> add(1, 2)
3
>>> add(1, "x")
Traceback (most recent call last):
    ...
TypeError: unsupported operand type(s) for +: 'int' and 'str'
>>> add(2, 2)
5
"""
import doctest
def add(a, b):
    """
    >>> add(0, 0)
    0
    """
    return a + b
print(doctest.testmod())
