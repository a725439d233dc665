x = 1
if x is 1:
    print("is one")
print("\d")
