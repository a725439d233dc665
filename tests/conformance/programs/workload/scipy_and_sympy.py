import scipy.optimize, sympy
x = sympy.symbols("x")
print(sympy.integrate(x**2, x), sympy.solve(x**2 - 2, x))
print(round(scipy.optimize.brentq(lambda v: v * v - 2, 0, 2), 6))
