import signal, time
def handler(number, frame):
    raise TimeoutError("too slow")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    time.sleep(10)
except TimeoutError as error:
    print(error)
signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.pause()
