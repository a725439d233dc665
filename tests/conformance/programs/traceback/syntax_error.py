print("never printed")
def broken(:
    pass
