import threading, time
stop = False
def work():
    while True:
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("main done")
