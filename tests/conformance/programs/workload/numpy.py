import numpy as np
a = np.arange(12).reshape(3, 4)
print(a @ a.T, a.mean(axis=0), np.linalg.det(np.eye(3)))
print(np.random.default_rng(3).random(2))
np.zeros((2, 3)) @ np.zeros((2, 3))
