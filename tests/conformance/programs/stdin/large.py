import hashlib, sys
content = sys.stdin.buffer.read()
print(len(content), hashlib.sha256(content).hexdigest())
