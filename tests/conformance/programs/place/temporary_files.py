import os, tempfile
print(tempfile.gettempdir())
with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
    file.write("x")
    file.flush()
    print(os.path.getsize(file.name))
with tempfile.TemporaryDirectory() as directory:
    open(os.path.join(directory, "a"), "w").close()
    print(os.listdir(directory))
descriptor, path = tempfile.mkstemp()
os.close(descriptor)
os.remove(path)
with tempfile.TemporaryFile() as file:
    file.write(b"y")
