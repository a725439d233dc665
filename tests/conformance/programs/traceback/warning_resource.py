import warnings
warnings.simplefilter("always")
open("main.py")
print("done")
