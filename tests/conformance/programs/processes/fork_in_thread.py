import os, threading
def work():
    pid = os.fork()
    if pid == 0:
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
thread = threading.Thread(target=work)
thread.start()
thread.join()
