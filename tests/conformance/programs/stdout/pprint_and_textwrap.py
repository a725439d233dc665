import pprint, textwrap
pprint.pprint({"key" * 5: list(range(30)), "other": {"nested": [1, 2, {"deep": "x" * 60}]}})
print(textwrap.fill("word " * 40, 50))
