import gc
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage, gc.callbacks)
print(gc.get_count()[1] < 12, gc.get_count()[2] < 12)
