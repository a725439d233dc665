import json
print(json.__file__.rpartition("/")[2], hasattr(json, "mine"))
