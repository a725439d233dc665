from __future__ import annotations
def f(x: undefined_type) -> "also undefined":
    return x
print(f.__annotations__)
