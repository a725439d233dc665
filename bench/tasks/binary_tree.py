class Node:
    def __init__(self, value):
        self.value = value
        self.left = self.right = None

    def add(self, value):
        side = "left" if value < self.value else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Node(value))
        else:
            child.add(value)

    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.value
        if self.right:
            yield from self.right


tree = Node(50)
for number in (20, 70, 10, 30, 60, 80, 25):
    tree.add(number)
assert list(tree) == [10, 20, 25, 30, 50, 60, 70, 80]
assert list(Node(1)) == [1]
