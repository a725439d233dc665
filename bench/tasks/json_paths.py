import json


def leaves(tree, path=""):
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from leaves(value, f"{path}[{place}]")
    else:
        yield path, tree


assert list(leaves(json.loads('{"a": [1, {"b": null}], "c": "x"}'))) == [("a[0]", 1), ("a[1].b", None), ("c", "x")]
assert list(leaves({})) == []
assert list(leaves(3)) == [("", 3)]
