import sys
print(sys.stdout.encoding, "ü")
