def check(x):
    assert x == 2
check(1)
