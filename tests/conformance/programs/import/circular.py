import circle_a
print(circle_a.value)
