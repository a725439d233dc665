import pdb
print(pdb.Pdb.__name__)
try:
    pdb.run("x = 1")
except BaseException as error:
    print(type(error).__name__)
