import sys
import __main__
print(__main__ is sys.modules["__main__"], __main__.__dict__ is globals(), repr(__main__))
x = 1
print(__main__.x)
