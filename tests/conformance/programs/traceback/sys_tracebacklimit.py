import sys
sys.tracebacklimit = 1
def a(): b()
def b(): c()
def c(): raise ValueError("short")
a()
