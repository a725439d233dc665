import resource
for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
    soft, hard = resource.getrlimit(getattr(resource, name))
    print(name, type(soft), type(hard), soft <= hard or hard == -1)
