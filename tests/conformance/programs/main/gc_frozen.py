import gc
print(gc.get_freeze_count())
