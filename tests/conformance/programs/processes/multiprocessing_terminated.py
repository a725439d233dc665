import multiprocessing, time
if __name__ == "__main__":
    child = multiprocessing.Process(target=time.sleep, args=(30,))
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode)
