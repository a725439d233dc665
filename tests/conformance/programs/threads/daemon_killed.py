import threading, time
def work():
    time.sleep(20)
    print("never")
threading.Thread(target=work, daemon=True).start()
print("main done")
