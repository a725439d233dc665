from multiprocessing import Array, Lock, Process, Value, shared_memory
def work(name, value, array, lock):
    block = shared_memory.SharedMemory(name=name)
    block.buf[0] = 42
    block.close()
    with lock:
        value.value += 1
        array[0] = 3
if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=100)
    value, array, lock = Value("i", 1), Array("i", 2), Lock()
    child = Process(target=work, args=(block.name, value, array, lock))
    child.start()
    child.join()
    print(block.buf[0], value.value, array[:], child.exitcode)
    block.close()
    block.unlink()
