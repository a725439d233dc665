import os, stat
facts = os.stat("main.py")
print(stat.filemode(facts.st_mode), facts.st_size, facts.st_nlink, os.access("main.py", os.W_OK), facts.st_uid == os.getuid())
