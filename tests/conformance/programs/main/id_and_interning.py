import sys
a = "interned_name"
b = "".join(["interned", "_name"])
print(a is sys.intern(b), 256 is 256, () is (), sys.getrefcount(object()) <= 2)
