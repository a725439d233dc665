import concurrent.futures
def cube(number):
    return number ** 3
def fail():
    raise KeyError("in a worker")
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(cube, range(5))))
        try:
            pool.submit(fail).result(20)
        except KeyError as error:
            print(repr(error), type(error.__cause__).__name__)
