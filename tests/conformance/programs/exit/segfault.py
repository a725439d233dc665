import ctypes
print("flushed", flush=True)
ctypes.string_at(0)
