import threading
threading.Timer(0.1, print, ["timer"]).start()
print("main done")
