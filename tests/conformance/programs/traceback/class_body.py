class Broken:
    value = undefined
