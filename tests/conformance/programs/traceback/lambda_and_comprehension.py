convert = lambda text: int(text)
print([convert(each) for each in ("1", "2", "three")])
