import concurrent.futures, time
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(lambda: (time.sleep(0.2), print("worker done")))
print("main done")
