import signal
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.alarm(0), signal.getitimer(signal.ITIMER_REAL))
print(signal.set_wakeup_fd(-1))
