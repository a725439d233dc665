"""How a call over HTTP is answered: with one document, or with a stream of events if it reports progress."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from belljar.frontends.access.callers import Caller
from belljar.frontends.mcp.http import HttpRequest, IsShort, wants_only_its_result
from belljar.settings import Settings
from tests.unit.frontends.mcp.conftest import OlderClient

if TYPE_CHECKING:
    from tests.unit.frontends.mcp.conftest import Site

BOTH = {b"accept": b"application/json, text/event-stream"}
SLOW = "import time\nprint('half', flush=True)\ntime.sleep(2.5)\nprint('done')"


def body_of(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}, **members}).encode()


@pytest.mark.parametrize(
    ("headers", "body", "is_short"),
    [
        pytest.param(BOTH, body_of(params={"name": "run_code"}), True, id="call"),
        pytest.param(BOTH, body_of(params={"_meta": {"other": 1}}), True, id="call_with_other_meta"),
        pytest.param(BOTH, body_of(params={"_meta": {"progressToken": 0}}), False, id="call_with_progress"),
        pytest.param(BOTH, body_of(params={"_meta": {"progressToken": "a"}}), False, id="call_with_named_progress"),
        pytest.param(BOTH, body_of(method="initialize"), False, id="opens_a_session"),
        pytest.param(BOTH, body_of(method="subscriptions/listen"), False, id="is_a_stream"),
        pytest.param(BOTH, body_of(params=[]), False, id="params_are_not_an_object"),
        pytest.param(BOTH, b"[]", False, id="batch"),
        pytest.param(BOTH, b"{", False, id="not_json"),
        pytest.param(BOTH, b"\xff", False, id="not_utf_8"),
        pytest.param(BOTH, b"[" * 200_000, False, id="nesting_bomb"),
        pytest.param({b"accept": b"application/json"}, body_of(), False, id="accepts_no_streams"),
        pytest.param({}, body_of(), False, id="no_accept_header"),
    ],
)
def test_only_a_call_without_progress_is_short(headers: dict[bytes, bytes], body: bytes, is_short: bool) -> None:
    assert wants_only_its_result(headers, body) is is_short


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25", "2026-07-28"])
def test_a_call_gets_one_document_unless_it_wants_progress(site: Site, revision: str) -> None:
    session = None if revision == "2026-07-28" else OlderClient(site, revision)
    for meta, kind in (({}, "application/json"), ({"progressToken": 5}, "text/event-stream"), ({}, "application/json")):
        params = {"name": "run_code", "arguments": {"code": SLOW if meta else "print('done')"}, "_meta": meta}
        connection = session.open("tools/call", params) if session else site.send("tools/call", params)
        with contextlib.closing(connection):
            response = connection.getresponse()
            content = response.read()
        assert response.headers["content-type"].partition(";")[0] == kind
        data = content.rpartition(b"data: ")[2] if meta else content
        assert json.loads(data)["result"]["content"][0]["text"].endswith("done")
        assert (b'"notifications/progress"' in content and b'"half"' in content) is bool(meta)


class Client:
    """Records the messages that a web server passes on to a client."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.came = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.got.append(message)
        self.came.set()

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.got) < count:
                self.came.clear()
                await self.came.wait()

    def mcp_request(self) -> HttpRequest:
        mcp_request = HttpRequest(Caller("test", Settings()), self.receive, self.send)
        mcp_request.shorten(silent_seconds=0.01)
        return mcp_request


async def answer(mcp_request: HttpRequest, document: bytes, status: int = 200) -> None:
    await mcp_request.send({"type": "http.response.start", "status": status, "headers": []})
    await mcp_request.send({"type": "http.response.body", "body": document})


def test_a_client_that_waits_long_gets_pings() -> None:
    async def scene() -> None:
        client = Client()
        mcp_request = client.mcp_request()
        await client.has(4)
        await answer(mcp_request, b'{"id":1}', 404)
        mcp_request.close()
        start, *pings, last = client.got
        assert start["status"] == 200
        assert (b"content-type", b"text/event-stream") in start["headers"]
        assert {each["body"] for each in pings} == {b": ping\r\n\r\n"}
        assert all(each["more_body"] for each in pings)
        assert last["body"] == b'event: message\r\ndata: {"id":1}\r\n\r\n'
        assert not last.get("more_body")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scene())


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered", "given_up"])
def test_a_request_that_has_ended_leaves_nothing_behind(is_answered: bool) -> None:
    async def scene() -> None:
        client = Client()
        mcp_request = client.mcp_request()
        if is_answered:
            await answer(mcp_request, b"{}")
        else:
            await client.has(2)  # it has begun to stream
        mcp_request.close()
        await asyncio.sleep(0)  # a cancelled task needs one more iteration of the loop
        await asyncio.sleep(0)
        count = len(client.got)
        assert len(asyncio.all_tasks()) == 1
        later = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.05, later.set_result, None)  # set later, so it fires later
        await later
        assert len(client.got) == count

    asyncio.run(scene())


def test_the_flag_is_that_of_the_current_request() -> None:
    async def one(is_short: bool) -> bool:
        if is_short:
            Client().mcp_request().close()
        await asyncio.sleep(0)
        return bool(IsShort())

    async def scene() -> list[bool]:
        return await asyncio.gather(one(True), one(False), one(True), one(False))

    assert asyncio.run(scene()) == [True, False, True, False]
