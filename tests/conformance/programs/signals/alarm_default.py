import signal, time
signal.setitimer(signal.ITIMER_REAL, 0.1)
time.sleep(10)
