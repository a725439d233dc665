import os
print(os.getuid(), os.geteuid() == os.getuid(), os.getgid() == os.getuid())
