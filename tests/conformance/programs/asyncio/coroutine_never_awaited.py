async def work():
    pass
work()
print("done")
