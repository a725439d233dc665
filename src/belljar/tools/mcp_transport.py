"""The transport to an MCP server, with two observations that the SDK does not make.

It notices that a server has left while no call was in progress, which ends the connection; and it records whether a
call had been sent when the server left, which decides whether the call may be repeated.
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


class SentFlag:
    """Whether the server may have received a call."""

    was_sent = False


_flag: contextvars.ContextVar[SentFlag] = contextvars.ContextVar("flag")  # travels with the call through the SDK


@contextlib.contextmanager
def watch_sending() -> Iterator[SentFlag]:
    """Record in the flag whether a call made within this context was sent."""
    flag = SentFlag()
    before = _flag.set(flag)
    try:
        yield flag
    finally:
        _flag.reset(before)


class McpConnection:
    """One connection. `streams` is what the SDK calls a transport; `on_end` is called when the server has left."""

    def __init__(self, name: str, server: ToolServerSettings, on_end: Callable[[], None]) -> None:
        self._name = name
        self._server = server
        self._on_end = on_end
        self._stderr: StderrPipe | None = None  # of a command
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def last_words(self) -> str:
        """The last lines that a command wrote to standard error; empty for a URL."""
        return "\n".join(self._last_lines)

    def is_over(self) -> bool:
        """Whether the server is gone, even if `on_end` was not called yet."""
        return self._stderr is not None and self._stderr.is_over()

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Open the SDK's streams, observed."""
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
        pairs = (each.partition(":") for each in server.headers)
        headers = {name.strip(): value.strip() for name, _, value in pairs}
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
        with StderrPipe(self._name, self._last_lines) as stderr:
            async with stdio_client(parameters, errlog=stderr.file) as streams:
                stderr.file.close()  # the command has its own copy
                self._stderr = stderr
                try:
                    yield streams[0], streams[1]
                finally:
                    self._stderr = None


class _Noting:
    """A stream to a command. A message that was written counts as sent, since it is unknown whether it was read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: Any) -> None:
        await self._inner.send(item)
        flag = _flag.get(None)
        if flag is not None:
            flag.was_sent = True

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _note_request(request: Any) -> None:
    """Record when the first byte of an HTTP request is sent: without a connection, the server has not received it."""
    flag = _flag.get(None)
    if flag is None:
        return

    async def trace(event: str, _: Any) -> None:
        if event.endswith("send_request_headers.started"):
            flag.was_sent = True

    request.extensions = {**request.extensions, "trace": trace}


def _environment(given: Sequence[str]) -> dict[str, str]:
    """The variables named in the settings; the SDK adds PATH, HOME and the like."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


class StderrPipe:
    """The pipe for a command's standard error; its lines go to the log and into `lines`."""

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
        self._read()  # a command that cannot start may have written why and ended already
        if self._unread:
            self._note(self._unread)
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def is_over(self) -> bool:
        """Whether every process that could write has ended."""
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
