import os, shutil
print(shutil.get_terminal_size())
try:
    os.get_terminal_size()
except OSError as error:
    print(error)
