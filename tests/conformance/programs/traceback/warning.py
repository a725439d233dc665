import warnings
def old():
    warnings.warn("old is old", DeprecationWarning, stacklevel=2)
old()
warnings.warn("something odd")
warnings.warn("shown once")
for _ in range(3):
    warnings.warn("in a loop", RuntimeWarning)
