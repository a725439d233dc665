"""Save the plots of a program: `belljar run --displays pictures examples/plot.py`."""

import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 4 * np.pi, 400)
plt.plot(x, np.sin(x) * np.exp(-x / 6))
plt.title("a bell, struck")
plt.show()
