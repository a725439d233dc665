def work():
    raise KeyboardInterrupt("stop", 1)
work()
