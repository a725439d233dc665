for name in ("belljar", "belljar.inside", "belljar.channel", "sitecustomize", "rich"):
    try:
        __import__(name)
        print(name, "was imported")
    except ImportError as error:
        print(type(error).__name__, error)
