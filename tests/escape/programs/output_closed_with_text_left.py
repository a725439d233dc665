# Property 27: text that can no longer be written is an error, as under a plain interpreter.
# expect: status=failed exit=120 stdout=""

import os

print("lost", end="")
os.close(1)
