import mmap
area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area[:3] = b"abc"
print(area[:3])
