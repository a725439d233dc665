import json
json.file = open(1, "w", closefd=False)
json.file.write("left in a buffer\n")
