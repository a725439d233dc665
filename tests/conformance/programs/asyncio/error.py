import asyncio
async def fail():
    raise ValueError("in a coroutine")
asyncio.run(fail())
