import locale
print(locale.getlocale(), locale.getpreferredencoding(False), f"{1234.5:n}")
