import threading
def work():
    {}["missing"]
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
