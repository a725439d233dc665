import signal
for number in sorted(signal.valid_signals()):
    try:
        handler = signal.getsignal(number)
    except ValueError as error:
        handler = error
    if handler is not signal.SIG_DFL:
        print(number, handler)
print(signal.default_int_handler is signal.getsignal(signal.SIGINT))
