import cmath, math
print(math.pi, math.factorial(30), math.isclose(0.1 + 0.2, 0.3), cmath.sqrt(-1), math.comb(50, 25), math.gcd(12, 18))
print((0.1).hex(), float.fromhex("0x1p-3"), (2.5).as_integer_ratio(), 1e308 * 10, complex(1, -2))
math.sqrt(-1)
