import multiprocessing
class Item:
    def __init__(self, n):
        self.n = n
def double(item):
    return Item(item.n * 2)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print([item.n for item in pool.map(double, [Item(1), Item(2)])])
