file = open("left_open.txt", "w")
file.write("never flushed by hand")
import atexit, subprocess
print("end of main")
