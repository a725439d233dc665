open("fresh.py", "w").write("print('fresh module runs')\n")
import fresh
