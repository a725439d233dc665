# Property 61: nothing of the server's environment, and nothing that shows where the server is installed.
# expect: status=ok exit=0 stdout=held

import os

known = {"PATH", "HOME", "USER", "LANG", "VIRTUAL_ENV", "MPLBACKEND", "MPLCONFIGDIR", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS",
         "PYTHONPATH", "LD_BIND_NOW", "LC_CTYPE", "TMPDIR", "TERM", "LOGNAME", "SHELL", "PWD", "MKL_NUM_THREADS"}
assert set(os.environ) <= known - {"PYTHONPATH"}, set(os.environ) - known
started_with = open("/proc/self/environ", "rb").read().decode().split("\0")
assert {pair.partition("=")[0] for pair in started_with if pair} <= known, started_with
assert not any("/root" in value or "/home" in value or "belljar-" in value for value in started_with), started_with
print("held")
