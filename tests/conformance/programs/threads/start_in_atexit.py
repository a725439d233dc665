import atexit, threading
def late():
    try:
        thread = threading.Thread(target=print, args=("late thread",))
        thread.start()
        thread.join()
    except RuntimeError as error:
        print(error)
atexit.register(late)
