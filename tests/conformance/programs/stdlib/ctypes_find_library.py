import ctypes.util
print(ctypes.util.find_library("c"), ctypes.util.find_library("m"))
