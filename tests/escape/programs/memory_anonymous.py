# Property 47: ordinary memory.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

kept = []
while True:
    kept.append(bytearray(1 << 20))
