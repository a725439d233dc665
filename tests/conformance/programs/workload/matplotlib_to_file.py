import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.plot([1, 2, 3])
figure.savefig("plot.png")
plt.close(figure)
print(open("plot.png", "rb").read(4))
