import importlib
plt = importlib.import_module("matplotlib.pyplot")
plt.plot([1, 2])
plt.savefig("plot.png")
print(open("plot.png", "rb").read(4))
