import multiprocessing, time
def work():
    time.sleep(30)
    print("never")
if __name__ == "__main__":
    multiprocessing.Process(target=work, daemon=True).start()
    print("main done")
