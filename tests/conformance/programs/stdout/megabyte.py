import sys
for number in range(20_000):
    sys.stdout.write(f"{number:040}\n")
