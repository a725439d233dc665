print("now", flush=True)
print("later")
