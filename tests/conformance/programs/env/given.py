import os
print(os.environ["GIVEN"], os.getenv("ABSENT"), os.environ["ÜMLAUT"])
print(os.environb[b"GIVEN"])
