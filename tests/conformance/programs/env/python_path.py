import in_library
print(in_library.value)
