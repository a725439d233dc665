import linecache
print(repr(linecache.getline(__file__, 1)), repr(linecache.getline(__file__, 2)))
print([name for name in linecache.cache])
