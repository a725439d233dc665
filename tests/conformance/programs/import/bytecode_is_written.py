import os, sys
import helper
print(sorted(os.listdir(".")), sorted(os.listdir("__pycache__")) if os.path.isdir("__pycache__") else None)
print(helper.__cached__, sys.dont_write_bytecode)
