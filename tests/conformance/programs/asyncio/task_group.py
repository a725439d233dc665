import asyncio
async def fail(kind):
    raise kind("failed")
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail(ValueError))
        group.create_task(fail(KeyError))
asyncio.run(main())
