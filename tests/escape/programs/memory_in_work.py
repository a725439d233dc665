# Property 47: files in the work directory are memory, too.
# expect: status=out_of_memory
# limits: memory_mb=64 disk_mb=256
# needs: root

for number in range(1024):
    with open(f"/work/{number}", "wb") as file:
        file.write(b"x" * (128 << 10))
