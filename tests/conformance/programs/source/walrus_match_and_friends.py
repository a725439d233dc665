def kind(value):
    match value:
        case {"type": "point", "x": x, **rest}:
            return f"point at {x} {rest}"
        case [first, *others] if (count := len(others)) > 1:
            return f"{first} and {count} others"
        case str() | bytes():
            return "text"
    return "other"
print(kind({"type": "point", "x": 1, "y": 2}), kind([1, 2, 3]), kind("x"), kind(1.0))
