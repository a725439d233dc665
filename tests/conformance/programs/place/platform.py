import os, platform, sys
print(platform.system(), platform.machine(), platform.python_version(), platform.python_implementation(), os.name, sys.platform)
print(platform.platform(), platform.libc_ver(), platform.architecture())
