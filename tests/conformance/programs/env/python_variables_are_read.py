import sys
print(sys.flags.hash_randomization, sys.flags.optimize, sys.flags.utf8_mode, sys.dont_write_bytecode)
import subprocess
print(subprocess.run([sys.executable, "-c", "import sys; print(sys.flags.optimize)"], capture_output=True, text=True).stdout)
