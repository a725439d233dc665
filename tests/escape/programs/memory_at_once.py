# Property 47: one large allocation.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

kept = bytearray(b"x") * (256 << 20)
