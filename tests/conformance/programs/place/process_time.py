import time
print(time.process_time() < 0.5)
