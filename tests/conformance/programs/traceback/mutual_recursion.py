def ping():
    pong()
def pong():
    ping()
ping()
