import multiprocessing
def fail(number):
    raise ValueError(f"bad {number}")
if __name__ == "__main__":
    with multiprocessing.Pool(1) as pool:
        pool.map(fail, [1])
