import sys, threading, time
def work():
    time.sleep(0.1)
    print("thread done")
threading.Thread(target=work).start()
sys.exit(17)
