import sys
for finder in sys.meta_path:
    print(finder if isinstance(finder, type) else type(finder))
print(sys.path_hooks)
