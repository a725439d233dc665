import sys
print(sys.orig_argv)
