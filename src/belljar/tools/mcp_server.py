"""The tools of an MCP server, which runs as a command of ours or somewhere behind a URL.

A server that goes away is started again at once, then after ever longer pauses; calls wait for it as long as their time
allows. A call that was under way fails: whether the server did what it was asked for, nobody knows, so it is not asked
twice.

One task holds the connection from its beginning to its end, as the SDK demands; calls come from any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import msgspec

from belljar.contract.errors import InvalidSettings, SandboxFault, ToolFailed
from belljar.contract.tools import ToolSpec
from belljar.settings import ToolServerSettings
from belljar.tools.source import Arguments, Tool, name_in_python

_log = logging.getLogger("belljar.tools")
_PAUSES_SECONDS = (0.0, 0.5, 2.0, 5.0, 15.0)
_STEADY_SECONDS = 30.0  # a connection that lasted this long starts the pauses anew
_PAGES_MAX = 100
_LINE_BYTES_MAX = 4096
_PROTOCOL_ERRORS = range(-32700, -32599)  # of JSON-RPC: the server is there, and did not like the call


class McpServer:
    """A Source. Belongs to the event loop that opens it."""

    def __init__(self, name: str, server: ToolServerSettings, start_seconds: float) -> None:
        self._name = name
        self._server = server
        self._start_seconds = start_seconds
        self._life: asyncio.Task[None] | None = None
        self._client: Any = None
        self._tools: list[Tool] = []
        self._changed = asyncio.Event()  # there is a connection
        self._lost = asyncio.Event()
        self._failure: BaseException | None = None
        self._complaints: _Grumbling | None = None  # of a command
        self.restarts = 0

    async def open(self) -> Sequence[Tool]:
        """Connect, and ask what there is.

        Raises:
            SandboxFault: nobody answers there.
        """
        _check_sdk()
        self._life = asyncio.create_task(self._live())
        connected = asyncio.create_task(self._changed.wait())
        await asyncio.wait([self._life, connected], timeout=self._start_seconds, return_when=asyncio.FIRST_COMPLETED)
        connected.cancel()
        if not self._life.done() and self._client is None:
            self._failure = TimeoutError(f"no answer within {self._start_seconds:g} s")
        if self._client is None:
            raise SandboxFault(f"tool server {self._name!r} does not start: {_words(self._failure)}") from self._failure
        return self._tools

    async def close(self) -> None:
        """Hang up; a command of ours is ended."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
            self._life = None
            self._changed.set()  # those who wait hear that there is nothing to wait for

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            began = loop.time()
            try:
                await self._connect_once()
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  whatever the connection broke with; it is made anew
                self._failure = error
                if not self._tools:
                    return  # it has never worked: whoever opened us hears why
                _log.warning("tool server %s: %s", self._name, _words(error))
            finally:
                self._hang_up()
            attempt = 0 if loop.time() - began > _STEADY_SECONDS else min(attempt + 1, len(_PAUSES_SECONDS) - 1)
            self.restarts += 1
            _log.warning("tool server %s went away; starting it again", self._name)
            await asyncio.sleep(_PAUSES_SECONDS[max(0, attempt - 1)])

    async def _connect_once(self) -> None:
        from mcp import Client

        self._lost.clear()
        async with Client(self._transport()) as client:
            if not self._tools:
                self._tools = await self._list(client)
            self._client = client
            self._changed.set()
            await self._lost.wait()
            self._hang_up()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """The SDK's own, with an ear on it: it does not tell when a server has gone while nobody asked anything."""
        import anyio

        async with self._open_streams() as (read, write):
            passing, passed = anyio.create_memory_object_stream[Any](0)

            async def pass_on() -> None:
                try:
                    async with passing:
                        async for message in read:
                            await passing.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                finally:
                    self._lost.set()

            async with anyio.create_task_group() as group:
                group.start_soon(pass_on)
                yield passed, write
                group.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def _open_streams(self) -> AsyncIterator[tuple[Any, Any]]:
        server = self._server
        if server.command:
            from mcp import StdioServerParameters
            from mcp.client.stdio import stdio_client

            command, *args = server.command
            parameters = StdioServerParameters(command=command, args=args, env=_environment(server.env))
            with _Grumbling(self._name) as complaints:
                async with stdio_client(parameters, errlog=complaints.file) as streams:
                    complaints.file.close()  # the command has its own
                    self._complaints = complaints
                    try:
                        yield streams[0], streams[1]
                    finally:
                        self._complaints = None
            return
        headers = dict(_header(each) for each in server.headers)
        if server.url.rstrip("/").endswith("/sse"):
            from mcp.client.sse import sse_client

            async with sse_client(server.url, headers=headers) as streams:
                yield streams[0], streams[1]
            return
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        async with (
            create_mcp_http_client(headers=headers) as http_client,
            streamable_http_client(server.url, http_client=http_client) as streams,
        ):
            yield streams[0], streams[1]

    async def _list(self, client: Any) -> list[Tool]:
        found, cursor = [], None
        for _ in range(_PAGES_MAX):
            page = await client.list_tools(cursor=cursor)
            found += [self._tool(each) for each in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    def _tool(self, described: Any) -> Tool:
        name: str = described.name

        async def run(arguments: Arguments) -> Any:
            return await self._call(name, arguments)

        spec = ToolSpec(
            name=name_in_python(self._server.prefix + name),
            description=described.description or "",
            input_schema=described.input_schema,
        )
        return Tool(spec=spec, run=run, origin=f"tool server {self._name!r} (there called {name!r})")

    def _hang_up(self) -> None:
        """There is no connection: both at once, or those who wait for one would not wait."""
        self._client = None
        self._changed.clear()
        self._lost.set()

    async def _connection(self) -> Any:
        """A connection that is not known to be dead; the news of that may be on its way still."""
        while True:
            client = self._client
            if client is not None and not (self._complaints is not None and self._complaints.is_over()):
                return client
            if self._life is None or self._life.done():
                raise ToolFailed(f"tool server {self._name!r} is closed")
            if client is not None:
                self._hang_up()
            await self._changed.wait()

    async def _call(self, name: str, arguments: Arguments) -> Any:
        client = await self._connection()
        try:
            answer = await client.call_tool(name, dict(arguments))
        except Exception as error:
            code = getattr(getattr(error, "error", None), "code", 0)
            if code not in _PROTOCOL_ERRORS and client is self._client:
                self._lost.set()
            raise ToolFailed(f"tool server {self._name!r}: {_words(error)}") from error
        if answer.is_error:
            raise ToolFailed("\n".join(str(_decode_block(block, is_json=False)) for block in answer.content))
        return decode_answer(answer)


def decode_answer(answer: Any) -> Any:
    """What a tool returned, as a JSON value: the structured form if there is one, else its text, read as JSON if it is.

    The SDK's servers wrap what is no object into {"result": …}; that is undone.
    """
    structured = answer.structured_content
    if structured is not None:
        if isinstance(structured, dict) and structured.keys() == {"result"}:
            return structured["result"]
        return structured
    values = [_decode_block(block) for block in answer.content]
    return values[0] if len(values) == 1 else (values or None)


def _decode_block(block: Any, *, is_json: bool = True) -> Any:
    if block.type != "text":
        return block.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not is_json:
        return block.text
    try:
        return msgspec.json.decode(block.text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return block.text


def _check_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise InvalidSettings("tools.servers needs the MCP SDK: pip install 'belljar[mcp]'") from error


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


def _words(error: BaseException | None) -> str:
    """What went wrong, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{error}" if str(error) else type(error).__name__


class _Grumbling:
    """A pipe that a command complains into; its lines go to our log. It ends with the command."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unread = b""

    def __enter__(self) -> Self:
        self._ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        self.file = os.fdopen(theirs, "w")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def is_over(self) -> bool:
        """Whether nobody is left who could write: asked of the kernel, which knows before anybody is told."""
        poll = select.poll()
        poll.register(self._ours, 0)  # only whether the other end is closed
        return bool(poll.poll(0))

    def _read(self) -> None:
        try:
            chunk = os.read(self._ours, _LINE_BYTES_MAX)
        except BlockingIOError:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._ours)
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self._unread = self._unread[-_LINE_BYTES_MAX:]
        for line in lines:
            _log.debug("tool server %s says: %s", self._name, line.decode("utf-8", "replace"))
