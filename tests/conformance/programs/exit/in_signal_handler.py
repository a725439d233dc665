import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)
