import numpy
print(numpy.mine)
