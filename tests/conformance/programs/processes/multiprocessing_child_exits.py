import multiprocessing, sys
def work(code):
    sys.exit(code)
if __name__ == "__main__":
    for code in (0, 5, "text"):
        child = multiprocessing.Process(target=work, args=(code,))
        child.start()
        child.join()
        print(child.exitcode)
