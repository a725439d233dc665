"""`belljar mcp`: a server for one client on standard input and output, with an engine of its own.

The client waits for its first answer, so only the SDK is imported before that; the sandbox starts while the client
reads the list of tools.

Standard input and output carry the protocol and nothing else. The descriptors are moved away first: 0 then reads
nothing and 1 writes to standard error, so no print and no child process can put a byte between two messages. The event
loop reads and writes them, not threads: a thread blocked on standard input cannot be stopped, and would keep the
process alive after its client has left.

A request with invalid text is answered here: the SDK drops such a line without knowing its id, and the client would
wait forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import importlib
import io
import json
import logging
import os
import select
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

from belljar.contract.errors import BelljarError
from belljar.contract.sessions import SessionState
from belljar.engine.engine import Engine
from belljar.environments import Environments
from belljar.frontends.access.callers import Caller
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.tool_call import log_fault
from belljar.settings import Settings

_log = logging.getLogger("belljar.mcp")
CALLER = "mcp"
_SHOWN_CHARACTERS = 120
_OWN_MIN = 3  # never one of the standard three
_PARSE_ERROR, _INVALID_PARAMS = -32700, -32602


async def serve(settings: Settings, config: ServerConfig) -> None:
    """Serve until the client closes standard input or a signal arrives; then leave nothing behind."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    host = OwnEngine(settings)
    try:
        await _talk(settings, config, host)
    except asyncio.CancelledError:
        _log.info("stopped by a signal")
    finally:
        await host.close()


async def _talk(settings: Settings, config: ServerConfig, host: OwnEngine) -> None:
    async with standard_streams(settings.server.body_bytes) as (lines, writer):
        gc.disable()  # imported objects stay; searching them for garbage takes a sixth of the start
        from mcp.server.stdio import stdio_server

        from belljar.frontends.mcp.server import build

        mcp_request = _StdioRequest(Caller(CALLER, settings))
        server = build(host, config, lambda context: mcp_request)
        gc.freeze()
        gc.enable()

        async def warm(ctx: Any, call_next: Any) -> Any:
            try:
                return await call_next(ctx)
            finally:
                host.warm()

        server.middleware.append(warm)
        streams: Any = stdio_server(stdin=lines, stdout=writer)  # type: ignore[arg-type]
        async with streams as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


class _StdioRequest:
    """The one client. When it leaves, the SDK cancels its calls itself."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def on_hang_up(self, notify: Callable[[], object]) -> None:
        pass


class OwnEngine:
    """A `Host` that opens its engine in the background, and retries at the next call if that failed."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.environments = settings, Environments(settings.state_dir, settings.environments)
        self._opening: asyncio.Task[Engine] | None = None
        self._engine: Engine | None = None
        self._message: str | None = None

    def warm(self) -> None:
        """Start to open the engine, unless it is open or opening."""
        if self._opening is None or (self._opening.done() and self._has_failed()):
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_log_failure)

    @property
    def open_engine(self) -> Engine | None:
        """None while the engine opens, and after that failed."""
        if self._opening is None or not self._opening.done() or self._has_failed():
            return None
        return self._opening.result()

    async def start_engine(self) -> Engine:
        """The open engine; waits while it starts. Raises SandboxFault if it cannot start."""
        self.warm()
        assert self._opening is not None
        return await asyncio.shield(self._opening)  # a cancelled call must not stop it for the others

    def start_message(self) -> str | None:
        """What the engine is doing while it opens."""
        return self._message

    def log_opened(self, caller: Caller, session: SessionState) -> None:
        """Log nothing: the client knows."""

    def log_fault(self, error: Exception) -> None:
        """Log to standard error, which clients keep."""
        log_fault(error)

    async def close(self) -> None:
        """Close the engine, or stop opening it."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, BelljarError):
                await self._opening
        if self._engine is not None:
            await self._engine.close(0.0)

    async def _open(self) -> Engine:
        assembly = await asyncio.to_thread(importlib.import_module, "belljar.assembly")
        engine: Engine = assembly.build_engine(self.settings, self._report)
        self._engine = engine
        await engine.open()
        self._message = None
        return engine

    def _has_failed(self) -> bool:
        assert self._opening is not None
        return self._opening.cancelled() or self._opening.exception() is not None

    def _report(self, message: str) -> None:
        self._message = f"preparing the sandbox: {message.strip()[:_SHOWN_CHARACTERS]}"
        _log.info("%s", message)


def _log_failure(task: asyncio.Task[Engine]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the sandbox could not be started: %s", error)


class StdioLines:
    """Incoming messages, one per line, until the client leaves. Invalid text is refused through `writer`."""

    def __init__(self, reader: asyncio.StreamReader, writer: StdioWriter) -> None:
        self._reader = reader
        self._writer = writer

    def __aiter__(self) -> StdioLines:
        return self

    async def __anext__(self) -> bytes:
        while line := await self._read():
            flaw = _find_flaw(line)
            if flaw is None:
                return line
            await self._refuse(flaw)
        raise StopAsyncIteration

    async def _read(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except (asyncio.LimitOverrunError, ConnectionError) as error:
            _log.error("the client's messages cannot be read any more: %s", error)
            return b""  # the end of the current line is unknown

    async def _refuse(self, flaw: _Flaw) -> None:
        _log.warning("a message was dropped: %s", flaw.message)
        if flaw.request_id is not None:
            error = {"code": flaw.code, "message": flaw.message}
            await self._writer.write(json.dumps({"jsonrpc": "2.0", "id": flaw.request_id, "error": error}) + "\n")
            await self._writer.flush()


class _Flaw(NamedTuple):
    """What is wrong with the text of a message, and which request it is."""

    code: int
    message: str
    request_id: str | int | None  # None: the client expects no answer


def _find_flaw(line: bytes) -> _Flaw | None:
    """Find invalid UTF-8 and lone surrogates. The SDK reports what is not JSON."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        message = f"the message is not UTF-8 (byte {error.start}); send text in UTF-8, and bytes in base64"
        return _Flaw(_PARSE_ERROR, message, _id_in(line.decode("utf-8", "replace")))
    if "\\ud" not in text and "\\uD" not in text:
        return None
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        message = (
            f"the message has a lone surrogate (U+{ord(error.object[error.start]):04X}), which is half of a character; "
            "send the whole character, and bytes in base64"
        )
        return _Flaw(_INVALID_PARAMS, message, _id_in(text))
    except (ValueError, RecursionError):
        pass
    return None


def _id_in(text: str) -> str | int | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    return found if isinstance(found, str | int) else None


class StdioWriter:
    """Outgoing messages; dropped once the client has left."""

    def __init__(self, writer: asyncio.StreamWriter | io.FileIO) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        """Queue a message, or write it to the file, which never blocks for long."""
        self._writer.write(text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Wait while the client is too far behind."""
        if isinstance(self._writer, asyncio.StreamWriter):
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    def close(self) -> None:
        """Stop writing; the descriptor stays open."""
        if isinstance(self._writer, asyncio.StreamWriter):
            self._writer.transport.close()


@contextlib.asynccontextmanager
async def standard_streams(line_bytes: int) -> AsyncIterator[tuple[StdioLines, StdioWriter]]:
    """Take over standard input and output; a line longer than `line_bytes` ends the connection."""
    loop = asyncio.get_running_loop()
    with _moved(0, os.O_RDONLY) as source, _moved(1, None) as sink:
        reader = asyncio.StreamReader(line_bytes)
        incoming = await _feed(loop, reader, source)
        writer = await _open_writer(loop, sink)
        try:
            yield StdioLines(reader, writer), writer
        finally:
            writer.close()
            if incoming is not None:
                incoming.close()
            await asyncio.sleep(0)  # let both transports finish closing


async def _feed(
    loop: asyncio.AbstractEventLoop, reader: asyncio.StreamReader, source: int
) -> asyncio.ReadTransport | None:
    file = os.fdopen(source, "rb", 0, closefd=False)
    if not _can_be_awaited(source):  # it never blocks for long
        reader.feed_data(await asyncio.to_thread(file.read))
        reader.feed_eof()
        return None
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return transport


def _can_be_awaited(source: int) -> bool:
    """False for a regular file, as in `belljar mcp < requests`, and for /dev/null: epoll does not support them."""
    with select.epoll() as waiting:
        try:
            waiting.register(source, select.EPOLLIN)
        except PermissionError:
            return False
    return True


async def _open_writer(loop: asyncio.AbstractEventLoop, sink: int) -> StdioWriter:
    file = io.FileIO(sink, "wb", closefd=False)
    try:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    except ValueError:  # a regular file, as in `belljar mcp > answers`
        return StdioWriter(file)
    return StdioWriter(asyncio.StreamWriter(transport, protocol, None, loop))


@contextlib.contextmanager
def _moved(descriptor: int, null_mode: int | None) -> Iterator[int]:
    """A duplicate of a standard descriptor, redirected meanwhile to /dev/null or, without a mode, to stderr."""
    own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OWN_MIN)
    was_blocking = os.get_blocking(own)
    diversion = os.dup(2) if null_mode is None else os.open(os.devnull, null_mode | os.O_CLOEXEC)
    try:
        os.dup2(diversion, descriptor)
        os.close(diversion)
        yield own
    finally:
        os.set_blocking(own, was_blocking)  # other processes may use the same terminal or file
        os.dup2(own, descriptor)
        os.close(own)
