import sys, threading
thread = threading.Thread(target=lambda: sys.exit(16))
thread.start()
thread.join()
print("main goes on")
