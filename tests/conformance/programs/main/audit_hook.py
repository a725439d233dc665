import sys
seen = []
sys.addaudithook(lambda event, arguments: seen.append(event))
open("main.py").close()
print("open" in seen)
