import sys
print(sys.stdout.line_buffering, sys.stderr.line_buffering)
