import concurrent.futures, os
def die():
    os._exit(1)
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        try:
            pool.submit(die).result(20)
        except concurrent.futures.process.BrokenProcessPool as error:
            print("broken")
