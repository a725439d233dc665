import typing
class Node:
    parent: "Node"
    children: "list[Node]"
def walk(node: "Node") -> "typing.Iterator[Node]":
    yield node
print(typing.get_type_hints(Node))
print(typing.get_type_hints(walk))
