import weakref
class Node:
    pass
node = Node()
node.me = node
reference = weakref.ref(node)
del node
waste = [[] for _ in range(100_000)]
print(reference() is None)
