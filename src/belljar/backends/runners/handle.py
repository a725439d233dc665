"""The server's side of one runner process: start it, send it programs, end it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from belljar.aio import wait_or_kill, wait_until_done
from belljar.backends.runners.wire import (
    Connection,
    FrameType,
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
_START_SECONDS = 180.0  # longer than its zygote may take for imports
_CLOSE_SECONDS = 10.0  # for its programs and its sandbox to end
_RUN, _RUN_WATCHED, _ENDED = int(FrameType.RUN), int(FrameType.RUN_WATCHED), int(FrameType.ENDED)
_STREAMS = {int(FrameType.STDOUT): "stdout", int(FrameType.STDERR): "stderr"}


class RunnerLost(ZygoteDied):
    """The runner ended together with its programs; another runner may run them again."""


class _PendingRun(NamedTuple):
    answer: asyncio.Future[Evidence | None]
    watcher: Watcher | None


class RunnerHandle:
    """A runner process and the programs it runs. Belongs to one event loop."""

    def __init__(self, on_lost: Callable[[RunnerHandle], None]) -> None:
        self.is_lost = False
        self.facts: Mapping[str, Any] = {}
        self.missed = 0  # number of checks since its last frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._receive, self._lose)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._pending: dict[int, _PendingRun] = {}
        self._parts: dict[int, list[bytes]] = {}  # by run: contents that do not fit in one frame
        self._joining: set[asyncio.Task[None]] = set()
        self._next = 0
        self._pacing: dict[int, asyncio.Task[None]] = {}  # by run: waits for a slow watcher to catch up

    async def start(self, settings: Settings) -> None:
        """Start the process, which inherits one socket and nothing else, and wait until it can run programs.

        Raises:
            SandboxFault: it could not start; the process has ended.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            descriptor = theirs.fileno()
            # In this thread: the kernel kills the runner when the thread that started it ends.
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
            self._connection.send(FrameType.SETTINGS, logging.getLogger().getEffectiveLevel(), pack_settings(settings))
            await asyncio.wait_for(self._ready, _START_SECONDS)
        except TimeoutError as error:
            await asyncio.shield(self.close())
            raise SandboxFault(f"a runner was not ready after {_START_SECONDS:g} s") from error
        except BaseException:
            await asyncio.shield(self.close())
            raise

    @property
    def load(self) -> int:
        """Number of programs in the runner."""
        return len(self._pending)

    async def run(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        """Run one program to its end. If this is cancelled, the program has ended when it returns.

        Raises:
            RunnerLost: the runner ended before the program did.
            BelljarError: the error of the runner's sandbox.
        """
        if self.is_lost:
            raise RunnerLost("a runner has ended")
        number = self._next = self._next % 0xFFFFFFFF + 1  # never 0, which means no run
        contents = contents_of(execution)
        packed = await self._send_ahead(number, execution, contents) if contents else pack(execution)
        answer: asyncio.Future[Evidence | None] = self._loop.create_future()
        self._pending[number] = _PendingRun(answer, watcher)
        self._connection.send(_RUN if watcher is None else _RUN_WATCHED, number, packed)
        try:
            evidence = await answer
        except asyncio.CancelledError:
            await self._cancel(number)
            raise
        finally:
            if self._pacing:
                self._go_on(number)
        assert evidence is not None, "a run was cancelled without `_cancel`"
        return evidence

    async def _send_ahead(self, number: int, execution: Execution, contents: list[bytes]) -> bytes:
        """Send the large contents of an execution in parts; return the rest, packed."""
        try:
            await self._connection.send_parts(number, contents)
        except asyncio.CancelledError:
            self._connection.send(FrameType.FORGET, number)
            raise
        if self.is_lost:
            raise RunnerLost("a runner has ended")
        return pack_without(execution, contents)

    async def _cancel(self, number: int) -> None:
        """Cancel a run and wait until its program has ended; a runner that does not answer is killed as stuck."""
        if number not in self._pending:
            return
        dead: asyncio.Future[Evidence | None] = self._loop.create_future()
        self._pending[number] = _PendingRun(dead, None)
        self._connection.send(FrameType.CANCEL, number)
        await wait_until_done(dead)

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        self.missed = 0
        if kind == _ENDED:
            if self._parts and (parts := self._parts.pop(number, None)) is not None:
                joining = self._loop.create_task(self._put_together(self._answer(number), payload, parts))
                self._joining.add(joining)
                joining.add_done_callback(self._joining.discard)
            else:
                self._answer(number).set_result(read_evidence(payload))
        elif kind == FrameType.PART:
            self._parts.setdefault(number, []).append(payload)
        elif kind == FrameType.FACTS:
            self.facts = read_facts(payload)
        elif kind == FrameType.LOG:
            logger, text = read_record(payload)
            logging.getLogger(logger).log(number, "%s", text)
        elif kind == FrameType.READY:
            self._ready.set_result(None)
        elif kind == FrameType.FORGET:
            self._parts.pop(number, None)
        elif kind == FrameType.FAILED:
            failed = self._answer(number) if number else self._ready
            failed.set_exception(read_error(payload))
            failed.exception()  # marks it as retrieved, because its waiter may have been cancelled
        elif kind == FrameType.CANCELLED:
            self._answer(number).set_result(None)
        else:
            self._pass_on(kind, number, payload)

    async def _put_together(self, answer: asyncio.Future[Any], payload: bytes, parts: list[bytes]) -> None:
        evidence = await asyncio.to_thread(read_large_evidence, payload, parts)
        if not answer.done():
            answer.set_result(evidence)

    def _answer(self, number: int) -> asyncio.Future[Any]:
        """Remove a run and return the future of its outcome, or an unused one if its waiter was just cancelled."""
        answer = self._pending.pop(number).answer
        return self._loop.create_future() if answer.done() else answer

    def _pass_on(self, kind: int, number: int, payload: bytes) -> None:
        watcher = self._pending[number].watcher
        if watcher is None:  # cancelled
            return
        if kind == FrameType.STARTED:
            watcher.started()
        elif kind == FrameType.DISPLAYED:
            watcher.displayed(read_display(payload))
        else:
            watcher.wrote(_STREAMS[kind], payload)
        if watcher.is_behind and number not in self._pacing:
            self._connection.send(FrameType.WAIT, number)
            self._pacing[number] = self._loop.create_task(self._go_on_after(watcher, number))

    async def _go_on_after(self, watcher: Watcher, number: int) -> None:
        await watcher.caught_up()
        self._connection.send(FrameType.GO_ON, number)
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
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(lost)
                pending.answer.exception()
        self._pending.clear()
        self._on_lost(self)

    def kill(self) -> None:
        """Kill the runner and all its programs; `on_lost` is called as for any other loss."""
        self.process.kill()

    async def close(self) -> None:
        """Let the runner end its programs and exit, and wait for that; kill it if it takes too long."""
        self._connection.close()
        await wait_or_kill(self.process, _CLOSE_SECONDS)
