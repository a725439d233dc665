def area(width: int, height: int = 2) -> int:
    """Return width times height."""
    return width * height
class Shape:
    """A shape."""
    sides = 0
    def grow(self):
        """Make it larger."""
help(area)
help(Shape)
