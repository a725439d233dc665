import os, signal
def handler(number, frame):
    raise RuntimeError("from the handler")
signal.signal(signal.SIGTERM, handler)
os.kill(os.getpid(), signal.SIGTERM)
