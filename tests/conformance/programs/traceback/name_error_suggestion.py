count = 1
print(coutn)
