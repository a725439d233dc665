print(2**1000)
try:
    print(10**5000)
except ValueError as error:
    print(error)
