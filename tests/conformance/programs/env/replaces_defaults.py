import os, pathlib, shutil
print(os.environ["HOME"], pathlib.Path.home(), os.environ["PATH"], shutil.which("ls"), os.environ["LANG"], os.environ["USER"])
