"""Tools as data, and one call of a tool: its caller, how its program is run, and what a result is made of.

The arguments of a tool are a msgspec struct: it gives both the input schema that a model reads (with its docstring) and
the check of what the model sends, so the two cannot drift apart. Results are plain dictionaries, as they are sent.

Why the engine runs in a task of its own: the SDK cancels a call by cancelling its task again at every step until it
ends, which would interrupt the sandbox's own clean-up. The task here is cancelled once and then awaited, so when a
cancelled call has ended, its program is gone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import mimetypes
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import msgspec

from belljar.aio import cancel_and_wait
from belljar.contract.errors import BelljarError, InvalidExecution, InvalidSettings
from belljar.contract.execution import MIB, Display, Execution, Outcome, ToolAnswered, ToolCalled
from belljar.contract.sessions import SessionOrder, SessionState
from belljar.engine.engine import Engine
from belljar.engine.sessions import Sessions
from belljar.environments import Environments
from belljar.frontends.access.callers import Caller
from belljar.frontends.mcp.config import ServerConfig
from belljar.settings import Settings

_PROGRESS_SECONDS = 1.0
_SHOWN_CHARACTERS = 200
EMBEDDED_BYTES = 8 * MIB  # of files in one answer, which a client parses in one piece
_T = TypeVar("_T")
_log = logging.getLogger("belljar.mcp")

Json = dict[str, Any]

#: Reports progress to the client: seconds so far, seconds at most, and a short message.
Report = Callable[[float, float | None, str | None], Awaitable[None]]


class Host(Protocol):
    """The owner of the engine: the HTTP server, or the MCP server on standard input and output."""

    settings: Settings
    environments: Environments

    @property
    def open_engine(self) -> Engine | None:
        """The engine, if it is open."""

    async def start_engine(self) -> Engine:
        """The open engine; waits while it starts. Raises SandboxFault if it cannot start."""

    def start_message(self) -> str | None:
        """What a starting engine is doing."""

    def log_opened(self, caller: Caller, session: SessionState) -> None:
        """Log a session that was opened or branched."""

    def log_fault(self, error: Exception) -> None:
        """Log a fault of the server."""


def log_fault(error: Exception) -> None:
    """Log an error that is not the caller's; an unexpected one with its traceback."""
    _log.error("a tool could not be run: %s", error, exc_info=None if isinstance(error, BelljarError) else error)


class Tail:
    """A Watcher that keeps the last line a program wrote, which progress reports show."""

    is_behind = False

    def __init__(self) -> None:
        self.line: str | None = None

    def started(self) -> None:
        pass

    def wrote(self, stream: str, chunk: bytes) -> None:
        lines = chunk[-4 * _SHOWN_CHARACTERS :].decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None:
            self.line = last.strip()[:_SHOWN_CHARACTERS]

    def displayed(self, display: Display) -> None:
        pass  # the answer contains it

    def called(self, call: ToolCalled) -> None:
        self.line = f"calls {call.tool}"

    def answered(self, answer: ToolAnswered) -> None:
        pass

    async def caught_up(self) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a tool, and what the tool may do for it."""

    host: Host
    config: ServerConfig
    caller: Caller
    report: Report | None = None  # None: the client wants no progress

    @property
    def has_network(self) -> bool:
        """Whether programs get a network: the server offers it, and the caller may use it."""
        return self.config.network and self.caller.grants.network

    def environment_of(self, language: str) -> str:
        """The guest environment, or image, for programs of a language."""
        return self.config.environments.get(language, "default")

    def result(self, text: str, structured: Json) -> Json:
        """A result of one text, with its structured form where the server gives that."""
        answer = text_result(text)
        return {**answer, "structuredContent": structured} if self.config.is_structured else answer

    async def run(self, execution: Execution) -> Outcome:
        """Run a program outside of sessions."""
        tail = Tail() if self.report else None
        with self.caller.running_up_to(1):
            engine = await self.engine()
            return await self.wait(engine.run(execution, watcher=tail), execution.limits.wall_seconds, tail)

    async def run_cell(self, session_id: str, cell: Execution) -> Outcome:
        """Run a cell of one of the caller's sessions."""
        tail = Tail() if self.report else None
        with self.caller.running_up_to(1):
            sessions = await self.sessions()
            work = sessions.run(self.caller.owner, session_id, cell, watcher=tail)
            return await self.wait(work, cell.limits.wall_seconds, tail)

    async def open_session(self, order: SessionOrder) -> SessionState:
        """Open a session, if the caller may have one more."""
        sessions = await self.sessions()
        with self.caller.opening(1, lambda: sessions.list(self.caller.owner)):
            state = await self.wait(sessions.open(order))
        self.host.log_opened(self.caller, state)
        return state

    async def branch_session(self, session_id: str, count: int) -> Sequence[SessionState]:
        """Copy a session, if the caller may have so many more."""
        sessions = await self.sessions()
        with self.caller.opening(count, lambda: sessions.list(self.caller.owner)):
            copies = await self.wait(sessions.branch(self.caller.owner, session_id, count))
        for state in copies:
            self.host.log_opened(self.caller, state)
        return copies

    async def engine(self) -> Engine:
        """The engine, once it is open."""
        engine = self.host.open_engine  # open at nearly every call; waiting would take a task
        return await self.wait(self.host.start_engine()) if engine is None else engine

    async def sessions(self) -> Sessions:
        """The sessions of the engine, once it is open."""
        return (await self.engine()).sessions

    async def wait(
        self, work: Coroutine[Any, Any, _T], most_seconds: float | None = None, tail: Tail | None = None
    ) -> _T:
        """Await `work` and report its progress to the client; cancelling this ends the work first."""
        task = asyncio.ensure_future(work)
        try:
            if self.report is None:
                return await asyncio.shield(task)
            async with self._reporting(self.report, most_seconds, tail):
                return await asyncio.shield(task)
        finally:
            if not task.done():
                await cancel_and_wait(task)

    @contextlib.asynccontextmanager
    async def _reporting(self, report: Report, most_seconds: float | None, tail: Tail | None) -> AsyncIterator[None]:
        ticker = asyncio.ensure_future(self._tick(report, most_seconds, tail))
        ticker.add_done_callback(_retrieve)  # a failed report must not stop the call
        try:
            yield
        finally:
            ticker.cancel()

    async def _tick(self, report: Report, most_seconds: float | None, tail: Tail | None) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            seconds = round(time.monotonic() - began, 1)
            message = tail.line if tail else self.host.start_message()
            await report(seconds, most_seconds, message or f"running for {seconds:.0f} s")


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception, or asyncio logs that it was never retrieved."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool that a model can call."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    call: Callable[[Call, Any], Awaitable[Json]]
    group: str
    gives: Json | None = None  # the schema of its structured result
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False

    @cached_property
    def input_schema(self) -> Json:
        """The JSON schema of the arguments."""
        return schema_of(self.takes)

    def describe(self, *, is_structured: bool, has_network: bool) -> Json:
        entry: Json = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.is_read_only,
                "destructiveHint": self.is_destructive,
                "idempotentHint": self.is_idempotent,
                "openWorldHint": has_network and not self.is_read_only,
            },
        }
        if self.gives is not None and is_structured:
            entry["outputSchema"] = self.gives
        return entry

    def read(self, arguments: Mapping[str, Any] | None) -> Any:
        """The arguments of a call. Numbers sent as text are accepted: models send them.

        Raises:
            InvalidExecution: they do not match the schema.
        """
        try:
            return msgspec.convert(dict(arguments or {}), self.takes, strict=False)
        except msgspec.ValidationError as error:
            problem = str(error).replace("`$.", "`").replace(" - at `", " at `").replace("`", "'")
            fields = ", ".join(self.takes.__struct_fields__) or "none"
            raise InvalidExecution(
                f"invalid arguments for {self.name}: {problem[0].lower() + problem[1:]}; it takes: {fields}"
            ) from None


def schema_of(kind: type[msgspec.Struct]) -> Json:
    """The JSON schema of a struct, without references: not every client resolves them."""
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    inlined: Json = _inline(schema, parts)
    return inlined


def _inline(node: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(parts[node["$ref"]], parts)
        return {
            key: _inline(value, parts) for key, value in node.items() if key != "title" or not isinstance(value, str)
        }
    if isinstance(node, list):
        return [_inline(each, parts) for each in node]
    return node


def select(tools: Iterable[Tool], wanted: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools selected by name or group, in the order of `tools`, so that clients can cache lists.

    Raises:
        InvalidSettings: a tool or group does not exist.
    """
    known = tuple(tools)
    words = {tool.name for tool in known} | {tool.group for tool in known}
    for word in wanted:
        if word not in words:
            groups = dict.fromkeys(tool.group for tool in known)
            raise InvalidSettings(
                f"unknown MCP tool {word!r}; choose from: {', '.join(tool.name for tool in known)}; "
                f"or from groups: {', '.join(groups)}"
            )
    return tuple(tool for tool in known if not wanted or tool.name in wanted or tool.group in wanted)


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def text_result(text: str, *, is_error: bool = False) -> Json:
    """A result of one text."""
    return {"content": [text_block(text)], "isError": is_error}


def resource_block(uri: str, content: bytes, mime: str) -> Json:
    """A file in a result."""
    return {"type": "resource", "resource": resource_contents(uri, content, mime)}


def resource_contents(uri: str, content: bytes, mime: str) -> Json:
    """A file as text if it is text, else as base64."""
    if mime.startswith("text/") or mime in ("application/json", "image/svg+xml"):
        try:
            return {"uri": uri, "mimeType": mime, "text": content.decode()}
        except UnicodeDecodeError:
            pass
    return {"uri": uri, "mimeType": mime, "blob": base64.b64encode(content).decode("ascii")}


def mime_of(path: str) -> str:
    """The MIME type by the name alone: a program controls the content."""
    kind, encoding = mimetypes.guess_type(path, strict=False)
    return kind if kind and not encoding else "application/octet-stream"


def uri_of(place: str, path: str) -> str:
    return place + urllib.parse.quote(path)
