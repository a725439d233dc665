import _thread, threading, time
threading.Timer(0.1, _thread.interrupt_main).start()
try:
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
