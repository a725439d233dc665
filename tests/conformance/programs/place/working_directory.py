import os, pathlib
print(os.getcwd(), pathlib.Path.cwd(), os.path.abspath("x"), os.listdir("."), os.path.realpath("."))
