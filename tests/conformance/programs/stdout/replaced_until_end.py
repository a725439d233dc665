import io, sys
class Shout(io.TextIOBase):
    def write(self, text):
        sys.__stdout__.write(text.upper())
        return len(text)
    def flush(self):
        sys.__stdout__.flush()
sys.stdout = Shout()
print("shouted")
