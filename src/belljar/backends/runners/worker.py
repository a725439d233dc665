"""A runner: a process with a sandbox in it, which does for a server all that running a program takes.

It has the server's settings without its secrets, none of its variables but a few plain ones, and one socket, over which
it is told what to run. It leaves when that closes, and dies with the server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys

from belljar.backends.local import LocalSandbox
from belljar.backends.runners.wire import (
    MOMENT_SECONDS,
    Connection,
    Word,
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
_STREAMS = {"stdout": int(Word.STDOUT), "stderr": int(Word.STDERR)}
_RUN, _RUN_WATCHED, _CANCEL, _ENDED = int(Word.RUN), int(Word.RUN_WATCHED), int(Word.CANCEL), int(Word.ENDED)


class Runner:
    """What the server has told this process to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._receive, self._on_lost)
        self._left = asyncio.Event()
        self._told: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._parts: dict[int, list[bytes]] = {}  # of programs that are about to come
        self._watchers: dict[int, _FarWatcher] = {}
        self._share = 0  # of all the programs that may run at once
        self._ended_at = 0.0  # when the last one did
        self._gap_seconds = _GAP_SECONDS_MAX  # between two ends, lately

    async def serve(self, peer: socket.socket) -> None:
        """Until the server leaves."""
        await self._loop.create_connection(lambda: self._connection, sock=peer)
        log_level, process = await self._told
        logging.basicConfig(handlers=[_FarLog(self._connection)], level=log_level)
        settings = read_settings(process)
        self._share = -(-settings.pool.max_running // max(1, settings.server.runners))
        environments = Environments(settings.state_dir, settings.environments)
        self._sandbox = LocalSandbox(settings, environments, logging.getLogger("belljar").info)
        opening = self._loop.create_task(self._sandbox.open())
        leaving = self._loop.create_task(self._left.wait())
        try:
            await asyncio.wait([opening, leaving], return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and self._report_start(opening):
                gc.collect()
                gc.freeze()
                gc.set_threshold(20_000, 20, 20)
                await self._send_facts_until(leaving)
        finally:
            await _end([opening, leaving, *self._runs.values()])
            await self._sandbox.close()
            self._connection.close()

    def _report_start(self, opening: asyncio.Task[None]) -> bool:
        error = opening.exception()
        if error is None:
            self._connection.send(Word.READY)
        else:
            self._connection.send(Word.FAILED, 0, pack_error(error))
        return error is None

    async def _send_facts_until(self, leaving: asyncio.Task[bool]) -> None:
        while not leaving.done():
            self._connection.send(Word.FACTS, 0, pack(self._sandbox.facts()))
            await asyncio.wait([leaving], timeout=_FACTS_SECONDS)

    def _on_lost(self) -> None:
        self._left.set()
        if not self._told.done():
            self._told.cancel()

    def _receive(self, word: int, number: int, process: bytes) -> None:
        if word == _RUN:
            self._runs[number] = self._loop.create_task(self._run(number, process, None))
        elif word == _RUN_WATCHED:
            watcher = self._watchers[number] = _FarWatcher(number, self._connection)
            self._runs[number] = self._loop.create_task(self._run(number, process, watcher))
        elif word == Word.PART:
            self._parts.setdefault(number, []).append(process)
        elif word == Word.FORGET:
            self._parts.pop(number, None)
        elif word == _CANCEL:
            if number in self._runs:  # else it has ended, and the news is on its way
                self._loop.call_soon(self._runs[number].cancel)  # after it has begun: else it could not answer
        elif word == Word.SETTINGS:
            self._told.set_result((number, process))
        elif number in self._watchers:
            self._watchers[number].let(word == Word.GO_ON)

    async def _run(self, number: int, process: bytes, watcher: _FarWatcher | None) -> None:
        parts = self._parts.pop(number, None) if self._parts else None
        try:
            if parts is None:
                execution = read_execution(process)
            else:
                execution = await asyncio.to_thread(read_large_execution, process, parts)
                parts = None
            evidence = await self._sandbox.run(execution, watcher)
            if contents := contents_of(evidence):
                await self._send_large(number, evidence, contents)
            else:
                self._send_ended(number, pack(evidence))
        except asyncio.CancelledError:
            self._connection.send(Word.CANCELLED, number)
        except Exception as error:  # noqa: BLE001  (whatever it is, somebody waits)
            self._connection.send(Word.FAILED, number, pack_error(error))
        finally:
            del self._runs[number]
            if watcher is not None:
                del self._watchers[number]

    async def _send_large(self, number: int, evidence: Evidence, contents: list[bytes]) -> None:
        try:
            await self._connection.send_parts(number, contents)
        except asyncio.CancelledError:
            self._connection.send(Word.FORGET, number)
            raise
        self._connection.send(_ENDED, number, pack_without(evidence, contents))

    def _send_ended(self, number: int, evidence: bytes) -> None:
        """At once; but where there are as many as may be, and they end one after the other, several at a time.

        Others run meanwhile, so nothing stands still, and the server wakes up once for all of them: for their answers,
        and for those who come next.
        """
        now = self._loop.time()
        gap_seconds, self._ended_at = min(now - self._ended_at, _GAP_SECONDS_MAX), now
        self._gap_seconds += (gap_seconds - self._gap_seconds) * _GAP_WEIGHT
        if self._gap_seconds < MOMENT_SECONDS and len(self._runs) + self._connection.unsent >= self._share:
            self._connection.send_among(self._share // 2, _ENDED, number, evidence)
        else:
            self._connection.send(_ENDED, number, evidence)


class _FarWatcher:
    """Whoever watches sits in the server."""

    def __init__(self, number: int, line: Connection) -> None:
        self._number = number
        self._connection = line
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def let(self, goes_on: bool) -> None:
        """Whether the reader keeps up."""
        if goes_on:
            self._goes_on.set()
        else:
            self._goes_on.clear()

    def started(self) -> None:
        """As `Watcher` says, like all of these."""
        self._connection.send(Word.STARTED, self._number)

    def wrote(self, stream: str, chunk: bytes) -> None:
        """Passed on."""
        self._connection.send(_STREAMS[stream], self._number, chunk)

    def displayed(self, display: Display) -> None:
        """Passed on."""
        self._connection.send(Word.DISPLAYED, self._number, pack(display))

    def called(self, call: ToolCalled) -> None:
        """Programs with tools are not run here."""
        raise AssertionError("a runner has no tools")

    def answered(self, answer: ToolAnswered) -> None:
        """Nor answered."""
        raise AssertionError("a runner has no tools")

    @property
    def is_behind(self) -> bool:
        """The reader, or the server as a whole."""
        return self._connection.is_full or not self._goes_on.is_set()

    async def caught_up(self) -> None:
        """Both of them."""
        while self.is_behind:
            await self._goes_on.wait()
            await self._connection.has_room()


class _FarLog(logging.Handler):
    """The log is the server's."""

    def __init__(self, line: Connection) -> None:
        super().__init__()
        self._connection = line
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """From any thread."""
        process = pack((record.name, self.format(record)))
        self._loop.call_soon_threadsafe(self._connection.send, Word.LOG, record.levelno, process)


async def _end(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main(descriptor: int) -> None:
    """The program of a runner, whose socket this is."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # stuck as we may be
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the server, who needs us to stop gracefully
        signal.signal(number, signal.SIG_IGN)
    peer = socket.socket(fileno=descriptor)
    peer.setblocking(False)

    async def serve() -> None:
        await Runner().serve(peer)

    try:
        import uvloop
    except ImportError:  # not everywhere to be had; only slower without
        asyncio.run(serve())
    else:
        uvloop.run(serve())


if __name__ == "__main__":
    main(int(sys.argv[1]))
