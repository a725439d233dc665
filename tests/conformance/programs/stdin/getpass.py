import getpass
print(repr(getpass.getpass("secret: ")))
