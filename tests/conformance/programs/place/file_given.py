print(open("data/input.csv").read(), open("raw.bin", "rb").read())
open("data/input.csv", "a").write("more\n")
open("data/new", "w").close()
import os
print(sorted(os.listdir("data")), os.stat("raw.bin").st_size)
