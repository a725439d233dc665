"""Where a zygote starts: the interpreter imports this by itself, before it looks at the program.

Leaving with this ImportError is how a guest goes on: `site` takes it for "there is no sitecustomize", forgets the
module, and the interpreter runs the program.
"""

from belljar.zygote.server import serve

serve()
raise ImportError("no sitecustomize", name="sitecustomize")
