import traceback
def f():
    traceback.print_stack()
f()
traceback.print_stack()
print(len(traceback.extract_stack()), len(traceback.format_stack()))
