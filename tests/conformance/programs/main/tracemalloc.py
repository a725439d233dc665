import tracemalloc
print(tracemalloc.is_tracing())
tracemalloc.start()
x = [bytes(1000) for _ in range(10)]
print(tracemalloc.get_traced_memory()[0] > 10_000, tracemalloc.get_object_traceback(x) is not None)
