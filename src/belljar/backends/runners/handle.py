"""One runner as its server sees it: started, told what to run, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from belljar.aio import wait_until_done, wait_until_gone
from belljar.backends.runners.wire import (
    Connection,
    Word,
    contents_of,
    pack,
    pack_settings,
    pack_without,
    read_display,
    read_error,
    read_evidence,
    read_facts,
    read_large_evidence,
    read_record,
)
from belljar.contract.backend import Watcher
from belljar.contract.errors import SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, Execution
from belljar.settings import Settings

_START = (
    "import sys; sys.path[:] = sys.argv[2:]; from belljar.backends.runners.worker import main; main(int(sys.argv[1]))"
)
_KEPT_VARIABLES = ("HOME", "LANG", "PATH", "TMPDIR")
_START_SECONDS = 180.0  # more than its warm process may take for imports
_CLOSE_SECONDS = 10.0  # for its programs to end, and its sandbox
_RUN, _RUN_WATCHED, _ENDED = int(Word.RUN), int(Word.RUN_WATCHED), int(Word.ENDED)
_STREAMS = {int(Word.STDOUT): "stdout", int(Word.STDERR): "stderr"}


class RunnerLost(ZygoteDied):
    """The runner ended, and with it what it ran; another may run that."""


class _PendingRun(NamedTuple):
    """Who waits for a run."""

    answer: asyncio.Future[Evidence | None]
    watcher: Watcher | None


class RunnerHandle:
    """A process that runs programs. Belongs to one event loop."""

    def __init__(self, on_lost: Callable[[RunnerHandle], None]) -> None:
        self.is_lost = False
        self.facts: Mapping[str, Any] = {}
        self.missed = 0  # how often in a row it was looked after, and had said nothing
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._receive, self._lose)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._asked: dict[int, _PendingRun] = {}
        self._parts: dict[int, list[bytes]] = {}  # of runs that have more to tell than fits a frame
        self._joining: set[asyncio.Task[None]] = set()
        self._next = 0
        self._pacing: dict[int, asyncio.Task[None]] = {}  # runs whose reader is behind

    async def start(self, settings: Settings) -> None:
        """Exec it, without anything of ours but one socket, and wait until it can run programs.

        Raises:
            SandboxFault: it cannot; nothing is left of it.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            descriptor = theirs.fileno()
            # From this thread: what it starts ends with the thread that started it.
            self.process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-I", "-c", _START, str(descriptor), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                pass_fds=[descriptor],
                start_new_session=True,
                cwd="/",
            )
        try:
            await self._loop.create_connection(lambda: self._connection, sock=ours)
            self._connection.send(Word.SETTINGS, logging.getLogger().getEffectiveLevel(), pack_settings(settings))
            await asyncio.wait_for(self._ready, _START_SECONDS)
        except TimeoutError as error:
            await asyncio.shield(self.close())
            raise SandboxFault(f"a runner was not ready after {_START_SECONDS:g} s") from error
        except BaseException:
            await asyncio.shield(self.close())
            raise

    @property
    def load(self) -> int:
        """How many programs it has."""
        return len(self._asked)

    async def run(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        """Run one program to its end. Cancelling this ends the program before it returns.

        Raises:
            RunnerLost: there is no outcome. BelljarError: as its sandbox has said.
        """
        if self.is_lost:
            raise RunnerLost("a runner has ended")
        number = self._next = self._next % 0xFFFFFFFF + 1  # never 0, which is no run
        contents = contents_of(execution)
        packed = await self._send_ahead(number, execution, contents) if contents else pack(execution)
        answer: asyncio.Future[Evidence | None] = self._loop.create_future()
        self._asked[number] = _PendingRun(answer, watcher)
        self._connection.send(_RUN if watcher is None else _RUN_WATCHED, number, packed)
        try:
            evidence = await answer
        except asyncio.CancelledError:
            await self._cancel(number)
            raise
        finally:
            if self._pacing:
                self._go_on(number)
        assert evidence is not None, "only who is not waited for any more is cancelled"
        return evidence

    async def _send_ahead(self, number: int, execution: Execution, contents: list[bytes]) -> bytes:
        """What is large of it; returns the rest, packed."""
        try:
            await self._connection.send_parts(number, contents)
        except asyncio.CancelledError:
            self._connection.send(Word.FORGET, number)
            raise
        if self.is_lost:
            raise RunnerLost("a runner has ended")
        return pack_without(execution, contents)

    async def _cancel(self, number: int) -> None:
        """Everything of it must be dead before the caller hears of it; one that does not answer is ended as stuck."""
        if number not in self._asked:
            return
        dead: asyncio.Future[Evidence | None] = self._loop.create_future()
        self._asked[number] = _PendingRun(dead, None)
        self._connection.send(Word.CANCEL, number)
        await wait_until_done(dead)

    def _receive(self, word: int, number: int, process: bytes) -> None:
        self.missed = 0
        if word == _ENDED:
            if self._parts and (parts := self._parts.pop(number, None)) is not None:
                joining = self._loop.create_task(self._put_together(self._answer(number), process, parts))
                self._joining.add(joining)
                joining.add_done_callback(self._joining.discard)
            else:
                self._answer(number).set_result(read_evidence(process))
        elif word == Word.PART:
            self._parts.setdefault(number, []).append(process)
        elif word == Word.FACTS:
            self.facts = read_facts(process)
        elif word == Word.LOG:
            logger, text = read_record(process)
            logging.getLogger(logger).log(number, "%s", text)
        elif word == Word.READY:
            self._ready.set_result(None)
        elif word == Word.FORGET:
            self._parts.pop(number, None)
        elif word == Word.FAILED:
            failed = self._answer(number) if number else self._ready
            failed.set_exception(read_error(process))
            failed.exception()  # read, or asyncio complains: whoever waited may have left
        elif word == Word.CANCELLED:
            self._answer(number).set_result(None)
        else:
            self._pass_on(word, number, process)

    async def _put_together(self, answer: asyncio.Future[Any], process: bytes, parts: list[bytes]) -> None:
        evidence = await asyncio.to_thread(read_large_evidence, process, parts)
        if not answer.done():
            answer.set_result(evidence)

    def _answer(self, number: int) -> asyncio.Future[Any]:
        """Where its end is waited for; nowhere, if whoever did has just been cancelled."""
        answer = self._asked.pop(number).answer
        return self._loop.create_future() if answer.done() else answer

    def _pass_on(self, word: int, number: int, process: bytes) -> None:
        watcher = self._asked[number].watcher
        if watcher is None:  # cancelled
            return
        if word == Word.STARTED:
            watcher.started()
        elif word == Word.DISPLAYED:
            watcher.displayed(read_display(process))
        else:
            watcher.wrote(_STREAMS[word], process)
        if watcher.is_behind and number not in self._pacing:
            self._connection.send(Word.WAIT, number)
            self._pacing[number] = self._loop.create_task(self._go_on_after(watcher, number))

    async def _go_on_after(self, watcher: Watcher, number: int) -> None:
        await watcher.caught_up()
        self._connection.send(Word.GO_ON, number)
        del self._pacing[number]

    def _go_on(self, number: int) -> None:
        pacing = self._pacing.pop(number, None)
        if pacing is not None:
            pacing.cancel()

    def _lose(self) -> None:
        self.is_lost = True
        lost = RunnerLost("a runner ended, and took this program with it")
        if not self._ready.done():
            self._ready.set_exception(RunnerLost("a runner ended before it was ready; its log says why"))
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(lost)
                asked.answer.exception()
        self._asked.clear()
        self._on_lost(self)

    def kill(self) -> None:
        """End it at once, and all its programs; we hear of it as of any other loss."""
        self.process.kill()

    async def close(self) -> None:
        """Have it end its programs and leave; wait until it is gone."""
        self._connection.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await wait_until_gone(self.process)
        except TimeoutError:
            self.kill()
            await wait_until_gone(self.process)
        self.process.wait()
