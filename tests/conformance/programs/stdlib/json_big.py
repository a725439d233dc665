import json
text = json.dumps({"numbers": list(range(20_000)), "text": "ü" * 1000, "nested": [[[[]]]]})
print(len(text), json.loads(text)["numbers"][-1])
json.loads("[" * 100_000)
