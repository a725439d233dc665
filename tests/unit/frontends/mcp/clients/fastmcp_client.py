"""A client of fastmcp, which is independent of the official SDK's client."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport


def transport_to(target):
    if "url" in target:
        return StreamableHttpTransport(target["url"])
    command, *arguments = target["command"]
    return StdioTransport(command=command, args=arguments, env=target["env"], keep_alive=False)


async def main(target, figure):
    async with Client(transport_to(target)) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("run_code", {"code": "print(6 * 7)"})
        picture = await client.call_tool("run_code", {"code": figure})
        bad = await client.call_tool("run_code", {"cod": "1"}, raise_on_error=False)
        opened = (await client.call_tool("open_session", {})).structured_content["id"]
        await client.call_tool("run_code", {"code": "x = 41", "session_id": opened})
        cell = await client.call_tool("run_code", {"code": "x + 1", "session_id": opened})
        many = await asyncio.gather(*(client.call_tool("run_code", {"code": f"print({n})"}) for n in range(10)))
        progress_messages = []

        async def on_progress(progress, total, message):
            progress_messages.append(message)

        slow = "import time\nprint('half', flush=True)\ntime.sleep(1.5)"
        await client.call_tool("run_code", {"code": slow}, progress_handler=on_progress)
        resource = await client.read_resource("sandbox://environments")
        prompts = await client.list_prompts()
        return {
            "tools": [tool.name for tool in tools],
            "text": answer.content[0].text,
            "structured": answer.structured_content["stdout"],
            "image": [block.data for block in picture.content if block.type == "image"],
            "bad_is_error": bad.is_error,
            "cell": cell.content[0].text,
            "many": [each.content[0].text for each in many],
            "progress": progress_messages,
            "resource": resource[0].text,
            "prompts": [prompt.name for prompt in prompts],
        }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))))
