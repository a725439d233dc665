def below(kind):
    for each in type.__subclasses__(kind):
        yield each
        yield from below(each)
print(sorted({each.__module__.partition(".")[0] for each in below(object) if "belljar" in each.__module__}))
