import subprocess, sys
code = "import sys; print(repr(sys.stdin.read()), open('main.py').fileno())"
subprocess.run([sys.executable, "-c", code])
subprocess.run("cat; echo read to the end", shell=True)
