print("before")
breakpoint()
print("after")
