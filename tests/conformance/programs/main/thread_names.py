import threading
thread = threading.Thread(target=lambda: print(threading.current_thread().name))
thread.start()
thread.join()
print(threading.Thread(target=print).name)
