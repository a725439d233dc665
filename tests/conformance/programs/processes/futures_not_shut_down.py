import concurrent.futures
def cube(number):
    return number ** 3
if __name__ == "__main__":
    pool = concurrent.futures.ProcessPoolExecutor(1)
    print(pool.submit(cube, 3).result(20))
