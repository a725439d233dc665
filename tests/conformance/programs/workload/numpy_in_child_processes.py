import multiprocessing
import numpy as np
def total(array):
    return float((array @ array).sum())
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(total, [np.ones((50, 50)), np.eye(50)]))
