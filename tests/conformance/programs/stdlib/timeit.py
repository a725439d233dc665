import timeit
print(timeit.timeit("sum(range(10))", number=10) > 0)
