try:
    open("absent.txt")
except FileNotFoundError as error:
    print(error)
    print(repr(error), error.errno, error.filename)
open("/absent/dir/file")
