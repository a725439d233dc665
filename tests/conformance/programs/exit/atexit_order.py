import atexit
for number in range(5):
    atexit.register(print, "exit function", number)
@atexit.register
def registers_more():
    atexit.register(print, "registered late")
print("main is done")
