# Property 45: no file, module, cache, setting or patched function of the previous program exists.
# expect: status=ok exit=0 stdout=held
# run: again

import builtins
import importlib
import json
import os
import random
import site
import sys
import threading

places = ["/work", "/tmp", "/dev/shm"]
assert [os.listdir(place) for place in places] == [["main.py"], [], []], [os.listdir(place) for place in places]
home = os.path.expanduser("~")
assert os.listdir(home) == ["main.py"], os.listdir(home)
assert not hasattr(builtins, "planted") and not hasattr(json, "planted") and "planted" not in os.environ
assert "planted" not in sys.modules and sys.path[0] == "/work" and os.getcwd() == "/work"
assert json.dumps({}) == "{}" and threading.active_count() == 1 and os.umask(0o22) == 0o22
assert len([name for name in os.listdir("/proc") if name.isdigit()]) == 1, os.listdir("/proc")
builtins.planted = json.planted = True
sys.modules["planted"] = json
json.dumps = lambda *a: "planted"
os.environ["planted"] = "yes"
for folder in (f"{home}/.local/lib/python3.11/site-packages", "/tmp/.belljar", site.getusersitepackages()):
    os.makedirs(folder, exist_ok=True)
    for name in ("usercustomize.py", "sitecustomize.py", "planted.py", "planted.pth"):
        open(f"{folder}/{name}", "w").write("import os; os._exit(99)")
for name in (".bashrc", ".pythonrc", ".profile", "__pycache__"):
    os.makedirs(f"{home}/{name}", exist_ok=True)
for module in list(sys.modules.values()):
    try:
        module.__loader__ = None
    except AttributeError:
        pass
random.seed(1)
os.umask(0)
print("held")
