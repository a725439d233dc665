import sys
content = sys.stdin.buffer.read()
print(len(content), content[:10], sum(content))
