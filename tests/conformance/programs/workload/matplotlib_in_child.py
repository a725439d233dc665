import subprocess, sys
code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('child.png'); print(plt.get_backend())"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
