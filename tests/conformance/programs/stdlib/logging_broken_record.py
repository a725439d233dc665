import logging
logging.warning("%d items", "three")
print("goes on")
