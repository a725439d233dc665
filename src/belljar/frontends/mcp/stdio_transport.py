"""Standard input and output as the wire of the protocol, and of nothing else.

The descriptors are moved away first: 0 then reads nothing and 1 writes to standard error, so no print and no child
process can put a byte between two messages. They are read and written by the event loop, not by threads: a thread
that blocks on standard input cannot be told to stop, and would keep a process alive whose client has left.

A request whose text is broken is answered here: the SDK takes no such line, knows no id then, and its client would
wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import logging
import os
import select
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

_log = logging.getLogger("belljar.mcp")
_OWN_MIN = 3  # never one of the standard three
_PARSE_ERROR, _INVALID_PARAMS = -32700, -32602


class StdioLines:
    """Incoming messages, one per line; ends with the client. Broken text is refused through `outlet`."""

    def __init__(self, reader: asyncio.StreamReader, outlet: Outlet) -> None:
        self._reader = reader
        self._outlet = outlet

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
            _log.error("the client cannot be understood any more: %s", error)
            return b""  # nothing that follows a line without end can be

    async def _refuse(self, flaw: _Flaw) -> None:
        _log.warning("a message was dropped: %s", flaw.message)
        if flaw.request_id is not None:
            error = {"code": flaw.code, "message": flaw.message}
            await self._outlet.write(json.dumps({"jsonrpc": "2.0", "id": flaw.request_id, "error": error}) + "\n")
            await self._outlet.flush()


class _Flaw(NamedTuple):
    """What is wrong with the text of a message, and whom to tell."""

    code: int
    message: str
    request_id: str | int | None  # None: nobody waits for an answer


def _find_flaw(line: bytes) -> _Flaw | None:
    """Bytes that are no text, and halves of characters. What is no JSON at all is left to the SDK."""
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
    """The id of a request."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    return found if isinstance(found, str | int) else None


class Outlet:
    """Outgoing messages. What a client that left would have read is dropped."""

    def __init__(self, writer: asyncio.StreamWriter | io.FileIO) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        """Hand it to the loop, or put it into the file: that never blocks for long."""
        self._writer.write(text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Wait while the client is too far behind."""
        if isinstance(self._writer, asyncio.StreamWriter):
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    def close(self) -> None:
        """The descriptor stays open: it is not ours."""
        if isinstance(self._writer, asyncio.StreamWriter):
            self._writer.transport.close()


@contextlib.asynccontextmanager
async def standard_streams(line_bytes: int) -> AsyncIterator[tuple[StdioLines, Outlet]]:
    """Take over standard input and output; lines longer than `line_bytes` end the conversation."""
    loop = asyncio.get_running_loop()
    with _moved(0, os.O_RDONLY) as source, _moved(1, None) as sink:
        reader = asyncio.StreamReader(line_bytes)
        incoming = await _feed(loop, reader, source)
        outlet = await _drain_into(loop, sink)
        try:
            yield StdioLines(reader, outlet), outlet
        finally:
            outlet.close()
            if incoming is not None:
                incoming.close()
            await asyncio.sleep(0)  # let both transports tell that they are closed


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
    """Not a regular file, as in `belljar mcp < requests`, nor /dev/null: the kernel has nothing to tell of them."""
    with select.epoll() as waiting:
        try:
            waiting.register(source, select.EPOLLIN)
        except PermissionError:
            return False
    return True


async def _drain_into(loop: asyncio.AbstractEventLoop, sink: int) -> Outlet:
    file = io.FileIO(sink, "wb", closefd=False)
    try:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    except ValueError:  # a regular file, as in `belljar mcp > answers`
        return Outlet(file)
    return Outlet(asyncio.StreamWriter(transport, protocol, None, loop))


@contextlib.contextmanager
def _moved(descriptor: int, null_mode: int | None) -> Iterator[int]:
    """A duplicate of a standard descriptor, which meanwhile leads to /dev/null or, without a mode, to stderr."""
    own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OWN_MIN)
    was_blocking = os.get_blocking(own)
    diversion = os.dup(2) if null_mode is None else os.open(os.devnull, null_mode | os.O_CLOEXEC)
    try:
        os.dup2(diversion, descriptor)
        os.close(diversion)
        yield own
    finally:
        os.set_blocking(own, was_blocking)  # the terminal or file behind it may be somebody else's too
        os.dup2(own, descriptor)
        os.close(own)
