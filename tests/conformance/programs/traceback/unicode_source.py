größe = "länge"
print(größe); raise ValueError(f"ungültig: {größe} ✗")
