import os, tempfile
directory = tempfile.TemporaryDirectory()
print(os.path.isdir(directory.name))
