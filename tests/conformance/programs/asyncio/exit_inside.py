import asyncio, sys
async def main():
    try:
        sys.exit(8)
    finally:
        print("finally")
asyncio.run(main())
