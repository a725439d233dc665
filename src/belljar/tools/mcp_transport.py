"""The way to an MCP server, a command of ours or a URL, with an eye on what goes over it.

The SDK tells neither that a server has left while nobody asked anything, nor whether a question was on its way when it
did. Both are noted here: the first ends the connection, the second decides whether it may be asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Self

from belljar.settings import ToolServerSettings

_log = logging.getLogger("belljar.tools")
_LINE_BYTES_MAX = 4096
_PIPE_BYTES = 65536  # what a pipe holds
_LAST_LINES = 10


class Letter:
    """A question; whether the server may have got it."""

    was_sent = False


_letter: contextvars.ContextVar[Letter] = contextvars.ContextVar("letter")  # goes with the question through the SDK


@contextlib.contextmanager
def writing() -> Iterator[Letter]:
    """Whatever is asked meanwhile is noted on this letter."""
    letter = Letter()
    before = _letter.set(letter)
    try:
        yield letter
    finally:
        _letter.reset(before)


class McpConnection:
    """One connection. `streams` is what the SDK calls a transport; `on_end` is called when the server has left."""

    def __init__(self, name: str, server: ToolServerSettings, on_end: Callable[[], None]) -> None:
        self._name = name
        self._server = server
        self._on_end = on_end
        self._complaints: Grumbling | None = None  # of a command
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def last_words(self) -> str:
        """The last lines that a command wrote to its standard error; empty if there are none, and for a URL."""
        return "\n".join(self._last_lines)

    def is_over(self) -> bool:
        """Whether the server is known to be gone; the news of that may be on its way still."""
        return self._complaints is not None and self._complaints.is_over()

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """The SDK's own, with an ear on them."""
        import anyio

        async with self._open() as (read, write):
            passing, passed = anyio.create_memory_object_stream[Any](0)

            async def pass_on() -> None:
                try:
                    async with passing:
                        async for message in read:
                            await passing.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                finally:
                    self._on_end()

            async with anyio.create_task_group() as group:
                group.start_soon(pass_on)
                yield passed, write
                group.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[Any, Any]]:
        server = self._server
        if server.command:
            async with self._start_command() as (read, write):
                yield read, _Noting(write)
            return
        headers = dict(_header(each) for each in server.headers)
        if server.url.rstrip("/").endswith("/sse"):
            from mcp.client.sse import sse_client

            async with sse_client(server.url, headers=headers) as streams:
                yield streams[0], _Noting(streams[1])
            return
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        async with create_mcp_http_client(headers=headers) as http_client:
            http_client.event_hooks = {"request": [_note_request]}
            async with streamable_http_client(server.url, http_client=http_client) as streams:
                yield streams[0], streams[1]

    @contextlib.asynccontextmanager
    async def _start_command(self) -> AsyncIterator[tuple[Any, Any]]:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        command, *args = self._server.command
        parameters = StdioServerParameters(command=command, args=args, env=_environment(self._server.env))
        with Grumbling(self._name, self._last_lines) as complaints:
            async with stdio_client(parameters, errlog=complaints.file) as streams:
                complaints.file.close()  # the command has its own
                self._complaints = complaints
                try:
                    yield streams[0], streams[1]
                finally:
                    self._complaints = None


class _Noting:
    """A stream to the server. What was handed over counts as sent: nobody tells whether it was read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: Any) -> None:
        await self._inner.send(item)
        letter = _letter.get(None)
        if letter is not None:
            letter.was_sent = True

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _note_request(request: Any) -> None:
    """Over HTTP a question is sent when its first byte is: a server that nobody can connect to has never got it."""
    letter = _letter.get(None)
    if letter is None:
        return

    async def trace(event: str, _: Any) -> None:
        if event.endswith("send_request_headers.started"):
            letter.was_sent = True

    request.extensions = {**request.extensions, "trace": trace}


def _environment(given: Sequence[str]) -> dict[str, str]:
    """The SDK adds PATH, HOME and the like; nothing else of ours is passed on unless it is named."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name.strip(), value.strip()


class Grumbling:
    """A pipe that a command complains into; its lines go to our log and into `lines`. It ends with the command."""

    def __init__(self, name: str, lines: deque[str]) -> None:
        self._name = name
        self._lines = lines
        self._unread = b""

    def __enter__(self) -> Self:
        self._ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        self.file = os.fdopen(theirs, "w")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self._read()  # a command that cannot start says why, and ends before anybody looks
        if self._unread:
            self._note(self._unread)
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def is_over(self) -> bool:
        """Whether nobody is left who could write: asked of the kernel, which knows before anybody is told."""
        poll = select.poll()
        poll.register(self._ours, 0)  # only whether the other end is closed
        return bool(poll.poll(0))

    def _read(self) -> None:
        try:
            chunk = os.read(self._ours, _PIPE_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._ours)
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self._unread = self._unread[-_LINE_BYTES_MAX:]
        for line in lines:
            self._note(line)

    def _note(self, line: bytes) -> None:
        text = line[:_LINE_BYTES_MAX].decode("utf-8", "replace")
        _log.debug("tool server %s says: %s", self._name, text)
        self._lines.append(text)
