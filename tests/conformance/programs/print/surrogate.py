print("before")
print("lone \udc80 surrogate")
