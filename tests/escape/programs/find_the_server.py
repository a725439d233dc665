# Property 12: a program can neither find nor import the server's own sources and packages.
# expect: status=ok exit=0 stdout=held

import importlib
import os
import sys

for name in ("belljar", "belljar.jail", "belljar.inside", "belljar.settings", "rich", "hypothesis", "pytest"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"imported {name}")
assert not [name for name in sys.modules if name.startswith("belljar")], sys.modules
roots = [path for path in ("/usr/local", "/env", *sys.path) if os.path.isdir(path)]
for root in roots:
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            assert not name.startswith("belljar") and not name.startswith("sitecustomize.py."), f"{folder}/{name}"
assert not os.path.exists("/tmp/.belljar"), os.listdir("/tmp/.belljar")
print("held")
