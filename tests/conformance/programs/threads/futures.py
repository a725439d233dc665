import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda number: number * 2, range(6))))
    future = pool.submit(int, "x")
    print(repr(future.exception()))
