import os, sys
print(sys.path[0], os.getcwd(), sys.path[0] == os.getcwd())
print([path for path in sys.path if "site-packages" in path])
print(len(sys.path))
