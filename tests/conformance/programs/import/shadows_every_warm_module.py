import contextlib, functools, json, random, re, selectors, socket, struct, typing
for module in (contextlib, functools, json, random, re, selectors, socket, struct, typing):
    print(module.__name__, getattr(module, "mine", False))
