import asyncio
async def work(number):
    await asyncio.sleep(0.01 * number)
    return number
async def main():
    print(await asyncio.gather(*(work(number) for number in range(5))))
    async with asyncio.timeout(5):
        await asyncio.to_thread(print, "in a thread")
asyncio.run(main())
