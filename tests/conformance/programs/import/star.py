from helper import *
print(greet("star"), "_private" in globals())
