from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=10)
print("left behind on purpose")
