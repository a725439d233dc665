import subprocess, sys
subprocess.run([sys.executable, "-c", "import sys; sys.exit(5)"], check=True)
