"""The tools of an MCP server: a command that Belljar starts, or a URL.

A lost server is restarted at once, then after increasing pauses; calls wait for it within their time limit. A call
that was in progress is repeated if that is safe: the server had not received it, or declares the tool as read-only or
idempotent. Otherwise it fails, since it is unknown whether it was carried out.

Tools are listed again after every start, and whenever the server reports a change.

One task holds the connection from beginning to end, as the SDK demands; calls come from other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from belljar.aio import cancel_all
from belljar.contract.errors import InvalidSettings, SandboxFault, ToolFailed
from belljar.contract.tools import ToolSpec
from belljar.settings import ToolServerSettings
from belljar.tools.mcp_transport import McpConnection, watch_sending
from belljar.tools.source import Arguments, Changed, Tool, name_in_python

_log = logging.getLogger("belljar.tools")
_PAUSES_SECONDS = (0.0, 0.5, 2.0, 5.0, 15.0)
_STEADY_SECONDS = 30.0  # a connection that lasted this long resets the pauses
_RELIST_SECONDS = 0.5  # least time between two listings
_LISTEN_SECONDS = 5.0  # before subscribing again to a server that ended the subscription
_PAGES_MAX = 100


class McpServer:
    """A source of tools. Bound to the event loop that opens it."""

    def __init__(self, name: str, server: ToolServerSettings, start_seconds: float) -> None:
        self._name = name
        self._server = server
        self._start_seconds = start_seconds
        self._line = McpConnection(name, server, self._hang_up)
        self._life: asyncio.Task[None] | None = None
        self._client: Any = None
        self._tools: list[Tool] | None = None  # None until first listed
        self._repeatable: frozenset[str] = frozenset()  # tools that may be called twice
        self._on_change: Changed | None = None
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._stale = asyncio.Event()  # the list may have changed
        self._failure: BaseException | None = None
        self.restarts = 0

    async def open(self, changed: Changed) -> Sequence[Tool]:
        """Connect and list the tools.

        Raises:
            SandboxFault: the server does not start or does not answer.
        """
        _check_sdk()
        self._on_change = changed
        self._life = asyncio.create_task(self._live())
        connected = asyncio.create_task(self._connected.wait())
        await asyncio.wait([self._life, connected], timeout=self._start_seconds, return_when=asyncio.FIRST_COMPLETED)
        connected.cancel()
        if not self._life.done() and self._tools is None:
            self._failure = TimeoutError(f"no answer within {self._start_seconds:g} s")
        if self._tools is None:
            said = f"; it said:\n{self._line.last_words}" if self._line.last_words else ""
            message = f"tool server {self._name!r} does not start: {_words(self._failure)}{said}"
            raise SandboxFault(message) from self._failure
        return self._tools

    async def close(self) -> None:
        """Disconnect; a command is ended."""
        if self._life is not None:
            await cancel_all([self._life])
            self._life = None
            self._connected.set()  # wakes waiting calls, which then fail

    # ---- the connection

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            began = loop.time()
            try:
                await self._connect_once()
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  whatever broke the connection; it is opened again
                self._failure = error
                if self._tools is None:
                    return  # it has never worked: `open` raises the reason
                _log.warning("tool server %s: %s", self._name, _words(error))
            finally:
                self._hang_up()
            self.restarts += 1
            _log.warning("tool server %s went away; starting it again", self._name)
            attempt = 0 if loop.time() - began > _STEADY_SECONDS else attempt
            await asyncio.sleep(_PAUSES_SECONDS[min(attempt, len(_PAUSES_SECONDS) - 1)])
            attempt += 1

    async def _connect_once(self) -> None:
        from mcp import Client

        self._lost.clear()
        async with Client(self._line.streams(), message_handler=self._on_message, cache=None) as client:
            await self._read_list(client)
            self._client = client
            self._connected.set()
            async with self._following(client):
                await self._lost.wait()
            self._hang_up()

    def _hang_up(self) -> None:
        """Drop the connection, in one step: calls check for it and then wait."""
        self._client = None
        self._connected.clear()
        self._lost.set()

    async def _connection(self) -> Any:
        """Wait for a connection that is not known to be dead."""
        while True:
            client = self._client
            if client is not None and not self._line.is_over():
                return client
            if self._life is None or self._life.done():
                raise ToolFailed(f"tool server {self._name!r} is closed")
            if client is not None:
                self._hang_up()
            await self._connected.wait()

    # ---- listing tools

    async def _read_list(self, client: Any) -> None:
        described, cursor = [], None
        for _ in range(_PAGES_MAX):
            page = await client.list_tools(cursor=cursor)
            described += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        self._repeatable = frozenset(each.name for each in described if _is_repeatable(each))
        tools = [self._tool(each) for each in described]
        before, self._tools = self._tools, tools
        if before is not None and [each.spec for each in before] != [each.spec for each in tools]:
            _log.info("tool server %s offers other tools now: %s", self._name, [each.spec.name for each in tools])
            assert self._on_change is not None
            self._on_change(tools)

    def _tool(self, described: Any) -> Tool:
        name: str = described.name

        async def run(arguments: Arguments) -> Any:
            return await self._call(name, arguments)

        spec = ToolSpec(
            name=name_in_python(self._server.prefix + name),
            description=described.description or "",
            input_schema=described.input_schema,
        )
        return Tool(spec=spec, run=run, origin=f"tool server {self._name!r} (named {name!r} there)")

    async def _on_message(self, message: Any) -> None:
        """Handle a notification, which older servers send without a subscription."""
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._stale.set()

    @contextlib.asynccontextmanager
    async def _following(self, client: Any) -> AsyncIterator[None]:
        """For the duration of the context, list the tools again when they change."""
        tasks = [asyncio.create_task(each) for each in (self._read_again(client), self._listen(client))]
        try:
            yield
        finally:
            await cancel_all(tasks)

    async def _read_again(self, client: Any) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._read_list(client)
            except Exception as error:  # noqa: BLE001  whatever the server answered; the old list stays
                _log.warning("tool server %s does not list its changed tools: %s", self._name, _words(error))
            await asyncio.sleep(_RELIST_SECONDS)

    async def _listen(self, client: Any) -> None:
        """Subscribe to changes, as newer servers demand."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        offered = client.server_capabilities.tools
        while offered is not None and offered.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._stale.set()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                pass
            await asyncio.sleep(_LISTEN_SECONDS)
            self._stale.set()  # changes may have been missed meanwhile

    # ---- calls

    async def _call(self, name: str, arguments: Arguments) -> Any:
        try:
            answer = await self._ask(name, arguments)
        except _HasLeft as left:
            if left.has_got_it and name not in self._repeatable:
                raise ToolFailed(
                    f"tool server {self._name!r} went away during the call; it may have been carried out, so it "
                    "was not repeated"
                ) from left
            try:
                answer = await self._ask(name, arguments)
            except _HasLeft as again:
                raise ToolFailed(f"tool server {self._name!r} went away during the call, twice") from again
        if answer.is_error:
            raise ToolFailed("\n".join(str(_decode_block(block, is_json=False)) for block in answer.content))
        return decode_answer(answer)

    async def _ask(self, name: str, arguments: Arguments) -> Any:
        client = await self._connection()
        with watch_sending() as flag:
            try:
                return await client.call_tool(name, dict(arguments))
            except Exception as error:
                # A restarted server behind a URL has lost our session; the SDK reports that in these words.
                has_refused = getattr(error, "message", "") == "Session terminated"
                if not has_refused and not _is_loss(error):
                    raise ToolFailed(f"tool server {self._name!r}: {_words(error)}") from error
                if client is self._client:
                    self._hang_up()
                raise _HasLeft(has_got_it=flag.was_sent and not has_refused) from error


class _HasLeft(Exception):
    """The server went away before it answered."""

    def __init__(self, *, has_got_it: bool) -> None:
        super().__init__()
        self.has_got_it = has_got_it


def _is_loss(error: Exception) -> bool:
    """Whether the server is gone, as opposed to one that refused the call or answered nonsense."""
    import anyio
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    return isinstance(error, RuntimeError | anyio.ClosedResourceError | anyio.BrokenResourceError)


def _is_repeatable(described: Any) -> bool:
    hints = described.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def decode_answer(answer: Any) -> Any:
    """Return a tool's result as a JSON value: the structured form if present, else its text, parsed if it is JSON.

    The SDK's servers wrap values that are not objects into {"result": …}; that is undone.
    """
    structured = answer.structured_content
    if structured is not None:
        if isinstance(structured, dict) and structured.keys() == {"result"}:
            result = structured["result"]
            return _decode_text(result) if isinstance(result, str) else result
        return structured
    values = [_decode_block(block) for block in answer.content]
    return values[0] if len(values) == 1 else (values or None)


def _decode_block(block: Any, *, is_json: bool = True) -> Any:
    if block.type != "text":
        return block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _decode_text(block.text) if is_json else block.text


def _decode_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _check_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise InvalidSettings("tools.servers needs the MCP SDK: pip install 'belljar[mcp]'") from error


def _words(error: BaseException | None) -> str:
    """The message of an error, unwrapped from the groups that task groups raise."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    text = getattr(error, "message", None) or str(error)  # str() of the SDK's errors adds code and data
    return text or type(error).__name__
