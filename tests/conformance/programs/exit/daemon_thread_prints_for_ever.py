import sys, threading, time
def chatter():
    while True:
        sys.stderr.write("")
threading.Thread(target=chatter, daemon=True).start()
time.sleep(0.05)
sys.exit(8)
