"""Print output as it is written, and end a program by disconnecting: `python examples/client_stream.py`.

Start a server with `belljar serve`, and set BELLJAR_URL and BELLJAR_API_KEY to its address and key.
"""

import asyncio
import contextlib

from belljar.client import AsyncClient, Output

ENDLESS = """
import itertools, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.05)
"""


async def main() -> None:
    async with AsyncClient.from_env() as client:
        async with contextlib.aclosing(client.stream(ENDLESS, timeout=60)) as events:
            async for event in events:
                if isinstance(event, Output):
                    print(event.text, end="", flush=True)
                    if "5" in event.text:
                        break  # disconnects, and the server ends the program
        print(f"and {(await client.health()).status} for the next one")


asyncio.run(main())
