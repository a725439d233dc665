import os, stat, sys
print(sys.stdin.encoding, sys.stdin.errors, sys.stdin.name, sys.stdin.mode, sys.stdin.fileno(), sys.stdin.isatty())
print(sys.stdin.newlines, sys.stdin.line_buffering, sys.stdin is sys.__stdin__, stat.S_ISCHR(os.fstat(0).st_mode))
