import sys
class Minimal:
    def write(self, text):
        sys.__stdout__.write(text)
sys.stdout = Minimal()
print("through a minimal stream")
