import spread.part
print(spread.part.value, spread.__file__ if hasattr(spread, "__file__") else None, list(spread.__path__))
