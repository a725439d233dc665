import multiprocessing
def square(number):
    return number * number
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        print(pool.map(square, range(10)))
        print(sorted(pool.imap_unordered(square, range(5))))
        print(pool.apply_async(square, (12,)).get(20))
