# Property 52: the same on standard error, also if a child writes it.
# expect: status=output_limit
# limits: output_kb=4 wall_seconds=30 cpu_seconds=30

import subprocess

subprocess.run("exec yes 1>&2", shell=True)
