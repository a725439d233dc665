"""Bodies that handlers read by the methods of Starlette's requests: counted, and read once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from belljar.frontends.access.callers import Caller, MemoryBudget
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.api.request import Request
from belljar.settings import Settings

PIECES = (b'{"a":', b" 1}")


def make_request(each_bytes: int = 1000, pieces: tuple[bytes, ...] = PIECES) -> Request:
    unsent = list(pieces)

    async def receive() -> Any:
        return {"type": "http.request", "body": unsent.pop(0), "more_body": bool(unsent)}

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": None}
    return Request(scope, receive, send, MemoryBudget(each_bytes, 10_000), Caller("test", Settings()))


async def read_stream(request: Request) -> bytes:
    return b"".join([piece async for piece in request.stream()])


READERS: dict[str, Callable[[Request], Awaitable[Any]]] = {
    "body": lambda request: request.body(),
    "json": lambda request: request.json(),
    "stream": read_stream,
}


@pytest.mark.parametrize("how", READERS)
def test_a_body_that_is_too_large_is_refused(how: str) -> None:
    with pytest.raises(Refusal) as refused:
        asyncio.run(_await(READERS[how](make_request(each_bytes=6))))
    assert refused.value.status == 413


@pytest.mark.parametrize("second", ["body", "stream"])  # Starlette keeps what `json` has decoded
@pytest.mark.parametrize("first", READERS)
def test_a_body_is_read_once(first: str, second: str) -> None:
    async def read_twice() -> None:
        request = make_request()
        await READERS[first](request)
        with pytest.raises(RuntimeError, match="read already"):
            await READERS[second](request)

    asyncio.run(asyncio.wait_for(read_twice(), 5))


@pytest.mark.parametrize("how", READERS)
def test_what_was_counted_is_given_back(how: str) -> None:
    async def read() -> tuple[int, int]:
        request = make_request(pieces=(b" " * 200_000, b"1"), each_bytes=1_000_000)
        budget = request._memory = MemoryBudget(1_000_000, 10_000_000)
        await READERS[how](request)
        held = budget.all_bytes - budget.free_bytes
        request.release()
        return held, budget.all_bytes - budget.free_bytes

    held, after = asyncio.run(read())
    assert held >= 200_000
    assert after == 0


async def _await(work: Awaitable[Any]) -> Any:
    return await work
