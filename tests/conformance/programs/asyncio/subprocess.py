import asyncio, sys
async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(input()[::-1])", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    print(await child.communicate(b"abc\n"), child.returncode)
    child = await asyncio.create_subprocess_shell("exit 6")
    print(await child.wait())
asyncio.run(main())
