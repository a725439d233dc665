import numpy as np
print(np.geterr(), np.get_printoptions()["precision"], np.__version__)
print(1 / np.float64(0))
np.random.seed(1)
print(np.random.rand(2))
