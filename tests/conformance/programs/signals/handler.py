import os, signal
def handler(number, frame):
    print("got", signal.Signals(number).name, frame.f_code.co_name)
signal.signal(signal.SIGUSR1, handler)
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
