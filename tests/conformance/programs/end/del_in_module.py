import holds_loud
print("end of main")
