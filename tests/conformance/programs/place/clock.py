import time
print(abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 1, time.monotonic() > 0, time.process_time() < 5, time.perf_counter() > 0)
print(time.thread_time() < 5, time.get_clock_info("monotonic").monotonic)
