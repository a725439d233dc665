import ctypes
libc = ctypes.CDLL(None)
print(libc.abs(-5), libc.strlen(b"four"), ctypes.sizeof(ctypes.c_long))
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))(lambda a, b: a[0] - b[0])
values = (ctypes.c_int * 4)(3, 1, 4, 2)
libc.qsort(values, 4, ctypes.sizeof(ctypes.c_int), compare)
print(list(values))
ctypes.set_errno(0)
print(ctypes.get_errno(), ctypes.pythonapi.Py_IsInitialized())
