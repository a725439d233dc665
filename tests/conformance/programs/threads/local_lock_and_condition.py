import threading
local = threading.local()
condition = threading.Condition()
order = []
def work(number):
    local.value = number
    with condition:
        condition.wait_for(lambda: len(order) == number, timeout=10)
        order.append(local.value)
        condition.notify_all()
threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(order, hasattr(local, "value"))
