# Property 27: os._exit works, and output flushed before it is kept.
# expect: status=failed exit=7 signal=None stdout=flushed

import os

print("flushed", flush=True)
os._exit(7)
