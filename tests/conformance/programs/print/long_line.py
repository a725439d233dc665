print("x" * 50_000)
