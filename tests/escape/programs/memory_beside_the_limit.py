# Property 47, the other side: memory within the limit is available. The interpreter itself does not count.
# expect: status=ok exit=0 stdout=held
# limits: memory_mb=64

kept = bytearray(b"x") * (48 << 20)
print("held")
