import multiprocessing
def add(shared, number):
    shared[number] = number * 10
if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        children = [multiprocessing.Process(target=add, args=(shared, number)) for number in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print(sorted(shared.items()))
