import sys, threading, time
lock = threading.Lock()
def hold():
    with lock:
        time.sleep(30)
threading.Thread(target=hold, daemon=True).start()
time.sleep(0.05)
sys.exit(7)
