import threading
threading.excepthook = lambda args: print("thread hook:", args.exc_type.__name__, args.thread.name)
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
