import _thread, threading, time
threading.Timer(0.1, _thread.interrupt_main).start()
try:
    for _ in range(500):
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
