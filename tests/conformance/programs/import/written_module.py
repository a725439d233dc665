import importlib
open("fresh.py", "w").write("print('fresh module runs')\n")
importlib.invalidate_caches()
import fresh
