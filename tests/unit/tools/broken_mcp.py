"""An MCP server over stdio that completes the handshake and then writes invalid messages.

Its tool `crooked` has an invalid schema, and `halve` answers with half of a surrogate pair.
"""

from __future__ import annotations

import json
import sys


def answer(request: dict, result: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        answer(
            request,
            {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "broken", "version": "1"},
            },
        )
    elif request["method"] == "tools/list":
        plain, crooked = {"type": "object", "properties": {}}, {"type": "object", "properties": {"a": {"type": [[]]}}}
        schemas = {"babble": plain, "halve": plain, "crooked": crooked}
        answer(request, {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]})
    elif request["method"] == "tools/call" and request["params"]["name"] == "halve":
        answer(request, {"content": [{"type": "text", "text": "a\ud800b"}]})
    elif request["method"] == "tools/call":
        print("\x00\x01 this is not JSON {]\n[1,2]\n" + "z" * 100_000, flush=True)
        answer(request, {"content": [{"type": "text", "text": "{not json"}, {"type": "image"}], "isError": "maybe"})
    elif "id" in request:
        reply = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}}
        print(json.dumps(reply), flush=True)
