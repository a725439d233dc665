import gc, weakref
class Node:
    pass
node = Node()
node.me = node
reference = weakref.ref(node)
del node
print(reference() is None)
gc.collect()
print(reference() is None)
