"""Standard input and output as the wire of the protocol, and of nothing else.

The descriptors are moved away first: 0 then reads nothing and 1 writes to standard error, so no print and no child
process can put a byte between two messages. They are read and written by the event loop, not by threads: a thread
that blocks on standard input cannot be told to stop, and would keep a process alive whose client has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Iterator

_log = logging.getLogger("belljar.mcp")
_OWN_MIN = 3  # never one of the standard three


class Lines:
    """Incoming messages, one per line; ends with the client."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> bytes:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except (asyncio.LimitOverrunError, ConnectionError) as error:
            _log.error("the client cannot be understood any more: %s", error)
            raise StopAsyncIteration from None  # nothing that follows a line without end can be
        if not line:
            raise StopAsyncIteration
        return line


class Outlet:
    """Outgoing messages. What a client that left would have read is dropped."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        """Hand it to the loop."""
        self._writer.write(text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Wait while the client is too far behind."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()


@contextlib.asynccontextmanager
async def standard_streams(line_bytes: int) -> AsyncIterator[tuple[Lines, Outlet]]:
    """Take over standard input and output; lines longer than `line_bytes` end the conversation."""
    loop = asyncio.get_running_loop()
    with _moved(0, os.O_RDONLY) as source, _moved(1, None) as sink:
        reader = asyncio.StreamReader(line_bytes)
        incoming = await _feed(loop, reader, source)
        outgoing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb", 0, closefd=False)
        )
        writer = asyncio.StreamWriter(outgoing, protocol, None, loop)
        try:
            yield Lines(reader), Outlet(writer)
        finally:
            outgoing.close()
            if incoming is not None:
                incoming.close()
            await asyncio.sleep(0)  # let both transports tell that they are closed


async def _feed(
    loop: asyncio.AbstractEventLoop, reader: asyncio.StreamReader, source: int
) -> asyncio.ReadTransport | None:
    file = os.fdopen(source, "rb", 0, closefd=False)
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    except ValueError:  # a regular file, as in `belljar mcp < requests`: it never blocks for long
        reader.feed_data(await asyncio.to_thread(file.read))
        reader.feed_eof()
        return None
    return transport


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
