import threading
def work():
    raise KeyboardInterrupt("in a thread")
thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
