import importlib.metadata
print(importlib.metadata.version("pip") != "", sorted(each.metadata["Name"].lower() for each in importlib.metadata.distributions()))
