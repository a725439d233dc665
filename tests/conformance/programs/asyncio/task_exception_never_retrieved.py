import asyncio
async def fail():
    raise ValueError("nobody asks")
async def main():
    task = asyncio.create_task(fail(), name="lost")
    await asyncio.sleep(0.01)
    del task
asyncio.run(main())
