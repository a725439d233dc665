import os
os.environ["PYTHONINSPECT"] = "1"
value = 1
