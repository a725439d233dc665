import locale
print(locale.getlocale(), locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL), locale.localeconv()["decimal_point"])
print(locale.setlocale(locale.LC_ALL, ""), locale.strxfrm("a"))
