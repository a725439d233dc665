def load():
    try:
        {}["key"]
    except KeyError as error:
        raise RuntimeError("cannot load") from error
load()
