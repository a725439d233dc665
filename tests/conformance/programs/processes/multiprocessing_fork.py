import multiprocessing, os, sys
def work(number, queue):
    queue.put((number * number, __name__, os.getpid() != parent))
parent = os.getpid()
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=work, args=(number, queue)) for number in range(3)]
    for child in children:
        child.start()
    print(sorted(queue.get(timeout=20) for _ in children))
    for child in children:
        child.join()
    print([child.exitcode for child in children])
