import asyncio
print(type(asyncio.get_event_loop_policy()).__name__)
async def main():
    loop = asyncio.get_running_loop()
    print(type(loop).__name__, loop.get_debug())
asyncio.run(main())
