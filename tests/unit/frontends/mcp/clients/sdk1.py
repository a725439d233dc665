"""A client of the official SDK 1.x, which most clients use today."""

import asyncio
import contextlib
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


@contextlib.asynccontextmanager
async def connect(target):
    if "url" in target:
        async with streamablehttp_client(target["url"]) as (incoming, outgoing, _):
            yield incoming, outgoing
    else:
        command, *arguments = target["command"]
        async with stdio_client(StdioServerParameters(command=command, args=arguments, env=target["env"])) as streams:
            yield streams


async def main(target, figure):
    async with connect(target) as (incoming, outgoing), ClientSession(incoming, outgoing) as client:
        await client.initialize()
        tools = (await client.list_tools()).tools
        answer = await client.call_tool("run_code", {"code": "print(6 * 7)"})
        picture = await client.call_tool("run_code", {"code": figure})
        bad = await client.call_tool("run_code", {"cod": "1"})
        opened = (await client.call_tool("open_session", {})).structuredContent["id"]
        await client.call_tool("run_code", {"code": "x = 41", "session_id": opened})
        cell = await client.call_tool("run_code", {"code": "x + 1", "session_id": opened})
        many = await asyncio.gather(*(client.call_tool("run_code", {"code": f"print({n})"}) for n in range(10)))
        progress_messages = []

        async def on_progress(progress, total, message):
            progress_messages.append(message)

        slow = "import time\nprint('half', flush=True)\ntime.sleep(1.5)"
        await client.call_tool("run_code", {"code": slow}, progress_callback=on_progress)
        resource = await client.read_resource("sandbox://environments")
        prompts = (await client.list_prompts()).prompts
        return {
            "tools": [tool.name for tool in tools],
            "text": answer.content[0].text,
            "structured": answer.structuredContent["stdout"],
            "image": [block.data for block in picture.content if block.type == "image"],
            "bad_is_error": bad.isError,
            "cell": cell.content[0].text,
            "many": [each.content[0].text for each in many],
            "progress": progress_messages,
            "resource": resource.contents[0].text,
            "prompts": [prompt.name for prompt in prompts],
        }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))))
