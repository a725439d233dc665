try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt:
    print("caught")
