import os
found = []
for number in range(256):
    try:
        os.fstat(number)
        found.append(number)
    except OSError:
        pass
print(found)
