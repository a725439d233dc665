import os, sys
sys.stdout.flush()
saved = os.dup(1)
file = os.open("captured.txt", os.O_RDWR | os.O_CREAT)
os.dup2(file, 1)
print("into the file")
sys.stdout.flush()
os.dup2(saved, 1)
print(open("captured.txt").read())
