import concurrent.futures
import numpy as np
def norm(seed):
    return round(float(np.linalg.norm(np.random.default_rng(seed).random((200, 200)) @ np.ones(200))), 6)
if __name__ == "__main__":
    print(norm(1))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(norm, [1, 2])))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        print(list(pool.map(norm, [1, 2])))
