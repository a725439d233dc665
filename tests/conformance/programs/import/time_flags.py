import sys
sys.dont_write_bytecode = True
import helper, os
print(os.path.isdir("__pycache__"))
