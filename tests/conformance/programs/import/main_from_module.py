import uses_main
x = 1
print(uses_main.look())
