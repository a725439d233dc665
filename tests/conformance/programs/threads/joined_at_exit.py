import threading, time
def work():
    time.sleep(0.2)
    print("thread done")
threading.Thread(target=work).start()
print("main done")
