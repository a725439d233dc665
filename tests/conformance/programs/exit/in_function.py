import sys
def outer():
    def inner():
        sys.exit(12)
    try:
        inner()
    finally:
        print("finally")
outer()
