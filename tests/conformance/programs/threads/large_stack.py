import sys, threading
sys.setrecursionlimit(200_000)
threading.stack_size(128 * 1024 * 1024)
def count(n):
    return 0 if n == 0 else 1 + max(map(count, [n - 1]))
thread = threading.Thread(target=lambda: print(count(30_000)))
thread.start()
thread.join()
