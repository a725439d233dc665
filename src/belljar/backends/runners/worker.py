"""The program of a runner process: a sandbox that runs programs for a server.

A runner has the server's settings without its secrets, a few harmless environment variables, and one socket over which
it receives executions. It exits when that socket closes, and the kernel kills it when the server dies.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket

from belljar.aio import cancel_all
from belljar.backends.local import LocalSandbox
from belljar.backends.runners.wire import (
    MOMENT_SECONDS,
    Connection,
    FrameType,
    contents_of,
    pack,
    pack_error,
    pack_without,
    read_execution,
    read_large_execution,
    read_settings,
)
from belljar.contract.execution import Display, Evidence, ToolAnswered, ToolCalled
from belljar.environments import Environments
from belljar.jail import syscalls

_FACTS_SECONDS = 1.0
_GAP_SECONDS_MAX, _GAP_WEIGHT = 0.1, 1 / 8
_STREAMS = {"stdout": int(FrameType.STDOUT), "stderr": int(FrameType.STDERR)}
_RUN, _RUN_WATCHED = int(FrameType.RUN), int(FrameType.RUN_WATCHED)
_CANCEL, _ENDED = int(FrameType.CANCEL), int(FrameType.ENDED)


class Runner:
    """The connection to the server, and the runs of this process."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._receive, self._on_lost)
        self._server_left = asyncio.Event()
        self._settings_sent: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._parts: dict[int, list[bytes]] = {}  # by run: contents of programs that are about to arrive
        self._watchers: dict[int, _ServerWatcher] = {}
        self._share = 0  # how many of the server's concurrent programs this runner gets at most
        self._ended_at = 0.0  # when the last program ended
        self._gap_seconds = _GAP_SECONDS_MAX  # moving average of the time between two ends

    async def serve(self, peer: socket.socket) -> None:
        """Run programs until the server closes the socket."""
        await self._loop.create_connection(lambda: self._connection, sock=peer)
        log_level, payload = await self._settings_sent
        logging.basicConfig(handlers=[_ServerLog(self._connection)], level=log_level)
        settings = read_settings(payload)
        self._share = -(-settings.pool.max_running // max(1, settings.server.runners))
        environments = Environments(settings.state_dir, settings.environments)
        self._sandbox = LocalSandbox(settings, environments, logging.getLogger("belljar").info)
        opening = self._loop.create_task(self._sandbox.open())
        leaving = self._loop.create_task(self._server_left.wait())
        try:
            await asyncio.wait([opening, leaving], return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and self._report_start(opening):
                gc.collect()
                gc.freeze()
                gc.set_threshold(20_000, 20, 20)
                await self._send_facts_until(leaving)
        finally:
            await cancel_all([opening, leaving, *self._runs.values()])
            await self._sandbox.close()
            self._connection.close()

    def _report_start(self, opening: asyncio.Task[None]) -> bool:
        error = opening.exception()
        if error is None:
            self._connection.send(FrameType.READY)
        else:
            self._connection.send(FrameType.FAILED, 0, pack_error(error))
        return error is None

    async def _send_facts_until(self, leaving: asyncio.Task[bool]) -> None:
        while not leaving.done():
            self._connection.send(FrameType.FACTS, 0, pack(self._sandbox.facts()))
            await asyncio.wait([leaving], timeout=_FACTS_SECONDS)

    def _on_lost(self) -> None:
        self._server_left.set()
        if not self._settings_sent.done():
            self._settings_sent.cancel()

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        if kind == _RUN:
            self._runs[number] = self._loop.create_task(self._run(number, payload, None))
        elif kind == _RUN_WATCHED:
            watcher = self._watchers[number] = _ServerWatcher(number, self._connection)
            self._runs[number] = self._loop.create_task(self._run(number, payload, watcher))
        elif kind == FrameType.PART:
            self._parts.setdefault(number, []).append(payload)
        elif kind == FrameType.FORGET:
            self._parts.pop(number, None)
        elif kind == _CANCEL:
            if number in self._runs:  # otherwise it has ended, and its frame is already sent
                self._loop.call_soon(self._runs[number].cancel)  # a task cancelled before it starts could not answer
        elif kind == FrameType.SETTINGS:
            self._settings_sent.set_result((number, payload))
        elif number in self._watchers:
            self._watchers[number].let(kind == FrameType.GO_ON)

    async def _run(self, number: int, payload: bytes, watcher: _ServerWatcher | None) -> None:
        parts = self._parts.pop(number, None) if self._parts else None
        try:
            if parts is None:
                execution = read_execution(payload)
            else:
                execution = await asyncio.to_thread(read_large_execution, payload, parts)
                parts = None
            evidence = await self._sandbox.run(execution, watcher)
            if contents := contents_of(evidence):
                await self._send_large(number, evidence, contents)
            else:
                self._send_ended(number, pack(evidence))
        except asyncio.CancelledError:
            self._connection.send(FrameType.CANCELLED, number)
        except Exception as error:  # noqa: BLE001  (whatever it is, the server waits for an answer)
            self._connection.send(FrameType.FAILED, number, pack_error(error))
        finally:
            del self._runs[number]
            if watcher is not None:
                del self._watchers[number]

    async def _send_large(self, number: int, evidence: Evidence, contents: list[bytes]) -> None:
        try:
            await self._connection.send_parts(number, contents)
        except asyncio.CancelledError:
            self._connection.send(FrameType.FORGET, number)
            raise
        self._connection.send(_ENDED, number, pack_without(evidence, contents))

    def _send_ended(self, number: int, evidence: bytes) -> None:
        """Report the end of a run: at once, or in batches if all slots are taken and programs end in quick succession.

        Other programs run meanwhile, so the delay costs no throughput, and the server wakes up once per batch: for
        these answers and for the programs that take the free slots.
        """
        now = self._loop.time()
        gap_seconds, self._ended_at = min(now - self._ended_at, _GAP_SECONDS_MAX), now
        self._gap_seconds += (gap_seconds - self._gap_seconds) * _GAP_WEIGHT
        if self._gap_seconds < MOMENT_SECONDS and len(self._runs) + self._connection.unsent >= self._share:
            self._connection.send_among(self._share // 2, _ENDED, number, evidence)
        else:
            self._connection.send(_ENDED, number, evidence)


class _ServerWatcher:
    """A `Watcher` that forwards everything to the server."""

    def __init__(self, number: int, connection: Connection) -> None:
        self._number = number
        self._connection = connection
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def let(self, goes_on: bool) -> None:
        """Set whether the reader in the server keeps up."""
        if goes_on:
            self._goes_on.set()
        else:
            self._goes_on.clear()

    def started(self) -> None:
        self._connection.send(FrameType.STARTED, self._number)

    def wrote(self, stream: str, chunk: bytes) -> None:
        self._connection.send(_STREAMS[stream], self._number, chunk)

    def displayed(self, display: Display) -> None:
        self._connection.send(FrameType.DISPLAYED, self._number, pack(display))

    def called(self, call: ToolCalled) -> None:
        """Never called: programs with tools run in the server's own sandbox."""
        raise AssertionError("a runner has no tools")

    def answered(self, answer: ToolAnswered) -> None:
        raise AssertionError("a runner has no tools")

    @property
    def is_behind(self) -> bool:
        """Whether the reader of this output or the socket to the server is behind."""
        return self._connection.is_full or not self._goes_on.is_set()

    async def caught_up(self) -> None:
        while self.is_behind:
            await self._goes_on.wait()
            await self._connection.has_room()


class _ServerLog(logging.Handler):
    """A handler that sends log records to the server."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record; may be called from any thread."""
        payload = pack((record.name, self.format(record)))
        self._loop.call_soon_threadsafe(self._connection.send, FrameType.LOG, record.levelno, payload)


def main(descriptor: int) -> None:
    """Run as a runner with the server's socket on `descriptor`."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # so that even a stuck runner ends with the server
    for number in (signal.SIGINT, signal.SIGTERM):  # for the server, which still needs its runners to stop gracefully
        signal.signal(number, signal.SIG_IGN)
    peer = socket.socket(fileno=descriptor)
    peer.setblocking(False)

    async def serve() -> None:
        await Runner().serve(peer)

    try:
        import uvloop
    except ImportError:  # optional; asyncio is slower
        asyncio.run(serve())
    else:
        uvloop.run(serve())
