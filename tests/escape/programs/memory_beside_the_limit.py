# Property 47, the other side: what fits is given. The interpreter itself is not counted.
# expect: status=ok exit=0 stdout=held
# limits: memory_mb=64

kept = bytearray(b"x") * (48 << 20)
print("held")
