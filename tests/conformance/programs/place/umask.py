import os
mask = os.umask(0o22)
print(oct(mask))
open("made", "w").close()
os.mkdir("directory")
print(oct(os.stat("made").st_mode), oct(os.stat("directory").st_mode))
