import os, sys
print(sys.flags.hash_randomization, os.environ.get("PYTHONHASHSEED"), hash(1), hash(1.5) == hash(1.5), hash("a") == hash("a"))
