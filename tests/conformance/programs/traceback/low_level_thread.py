import _thread, time
lock = _thread.allocate_lock()
lock.acquire()
def work():
    try:
        raise OSError("in a raw thread")
    finally:
        lock.release()
_thread.start_new_thread(work, ())
lock.acquire()
time.sleep(0.2)
