import os, pathlib
print(os.path.expanduser("~"), pathlib.Path.home() == pathlib.Path.cwd(), os.path.expanduser("~/x"), os.environ["HOME"])
