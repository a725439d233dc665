import os, selectors
read, write = os.pipe()
os.write(write, b"ready")
with selectors.DefaultSelector() as selector:
    selector.register(read, selectors.EVENT_READ, "tag")
    print(type(selector).__name__, [(key.data, events) for key, events in selector.select(1)])
