import importlib, os, time
open("changing.py", "w").write("value = 1\n")
import changing
print(changing.value)
open("changing.py", "w").write("value = 22\nextra = True\n")
importlib.invalidate_caches()
importlib.reload(changing)
print(changing.value, changing.extra)
