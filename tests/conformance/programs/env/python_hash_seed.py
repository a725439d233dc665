print(hash("a"), list({"x", "y", "z", "w"}))
