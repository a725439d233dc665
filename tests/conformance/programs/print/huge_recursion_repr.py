nested = []
nested.append(nested)
print(nested)
deep = []
for _ in range(100_000):
    deep = [deep]
try:
    repr(deep)
except RecursionError as error:
    print(type(error).__name__, str(error)[:40])
