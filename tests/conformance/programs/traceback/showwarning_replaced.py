import warnings
warnings.showwarning = lambda message, category, filename, lineno, file=None, line=None: print("shown:", message, category.__name__, lineno)
warnings.warn("custom")
