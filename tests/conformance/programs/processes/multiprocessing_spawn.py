import multiprocessing
def work(number):
    print("child", number, __name__, flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=work, args=(5,))
    child.start()
    child.join(20)
    print(child.exitcode)
