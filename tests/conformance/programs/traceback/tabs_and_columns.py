def f(a):
	return a["b"]["c"] + 1
f({"b": None})
