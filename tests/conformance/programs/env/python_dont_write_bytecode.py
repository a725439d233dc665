import os
import helper
print(os.path.exists("__pycache__"))
