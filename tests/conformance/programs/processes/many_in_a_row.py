import subprocess
print(sum(subprocess.run(["true"]).returncode for _ in range(30)))
