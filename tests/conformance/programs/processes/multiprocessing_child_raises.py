import multiprocessing
def work():
    raise ValueError("in the child")
if __name__ == "__main__":
    child = multiprocessing.Process(target=work, name="worker-1")
    child.start()
    child.join()
    print(child.exitcode)
