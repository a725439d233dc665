text = """never closed
more
