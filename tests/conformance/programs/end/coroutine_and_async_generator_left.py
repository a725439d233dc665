async def coroutine():
    pass
left = coroutine()
print("end of main")
