# Properties 55 and 68: the compiler runs behind the same limits as what it compiles.
# expect: status=out_of_memory
# limits: memory_mb=64
# needs: root

compile("(" + "'x' * 4096, " * 2_000_000 + ")", "bomb", "exec")
