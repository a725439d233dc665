# coding: ascii
print("ü")
