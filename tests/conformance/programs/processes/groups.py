import os
print(os.getpgrp() == os.getpid() or os.getpgrp() == os.getpgid(os.getppid()), os.getpid() > 1, os.getppid() >= 0)
