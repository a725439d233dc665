import queue, threading
work, done = queue.Queue(), []
def worker():
    while (each := work.get()) is not None:
        done.append(each * 2)
        work.task_done()
thread = threading.Thread(target=worker)
thread.start()
for number in range(5):
    work.put(number)
work.join()
work.put(None)
thread.join()
print(done)
