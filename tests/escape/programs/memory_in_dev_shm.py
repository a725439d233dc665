# Property 47: a file in /dev/shm is memory.
# expect: status=out_of_memory
# limits: memory_mb=64 disk_mb=256
# needs: root

with open("/dev/shm/kept", "wb") as file:
    for _ in range(128):
        file.write(b"x" * (1 << 20))
