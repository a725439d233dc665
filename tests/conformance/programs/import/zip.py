import sys, zipfile
with zipfile.ZipFile("library.zip", "w") as archive:
    archive.writestr("zipped.py", "value = 'from a zip'\n")
sys.path.insert(0, "library.zip")
import zipped
print(zipped.value, zipped.__file__)
