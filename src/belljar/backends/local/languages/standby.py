"""Commands started ahead of demand: jailed, executed, and waiting for the program they will run.

A runtime that has threads before its first line, such as Node, cannot be forked. So the runtime itself is started
ahead, in a jail of its own, by the one way into the jail that every command takes: a waiting process is as walled as
any, because it became what it is in the same way. It runs one program and is gone.

Two kinds wait. One reads its program from a socket, its *door*, and lays it out itself (`languages/standby.cjs`). The
other is a compiler whose standard input is the source, and whose standard output is the compiled file.

What a program is charged for, in time, begins when it is handed over. What the runtime took before that is ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar import channel
from belljar.backends.local.pool.guests import Guest
from belljar.backends.local.pool.pool import INTERPRETER_BYTES, LocalPool
from belljar.backends.local.pool.zygotes import BARE
from belljar.backends.local.run.run import Run
from belljar.contract.backend import Watcher
from belljar.contract.errors import BelljarError, TooLarge, ZygoteDied
from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.files import File
from belljar.settings import RequestSettings, Settings

_log = logging.getLogger("belljar.local")
PACKET_BYTES_MAX = 64 * 1024  # a larger program is run by a process that starts when it comes
_KINDS_MAX = 6  # different commands, or the same with different limits, of which some wait
_FAILURES_MAX = 3  # processes that end unused, in a row, before no more are started


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """What can be started ahead of a program, and how that program is given to it."""

    argv: tuple[str, ...]
    path: str
    env: tuple[tuple[str, str], ...]
    limits: Limits
    packet: bytes = b""  # for its door; none: the source is its standard input
    becomes: str = ""  # the file that its standard output is, if it is a compiler
    is_usual: bool = True  # many will ask for such; of any other kind none waits before it was asked for twice

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for all that the same waiting process can serve."""
        return self.path, self.argv, self.env, self.limits.memory_bytes


def build_packet(files: list[tuple[str, bytes, bool]], args: tuple[str, ...], has_stdin: bool) -> bytes:
    """A program as `languages/standby.cjs` reads it: paths, contents, and whether we have compiled them."""
    order = {
        "files": [(path, len(content), is_compiled) for path, content, is_compiled in files],
        "args": args,
        "stdin": has_stdin,
    }
    return channel.build(order, b"".join(content for _, content, _ in files))


def _as_standard_input(execution: Execution, bounds: RequestSettings) -> Execution:
    """For a compiler that waits: the program is what it reads, and it may write as much as its files may hold."""
    limits = dataclasses.replace(execution.limits, output_bytes=bounds.files_bytes)
    return dataclasses.replace(execution, stdin=execution.code.encode(), artifacts=(), limits=limits)


class Waiting:
    """A process that waits, with the host's ends of its door and its standard input."""

    def __init__(self, pool: LocalPool, guest: Guest, standby: Standby) -> None:
        """Have a guest become the command.

        Raises:
            ZygoteDied: the guest is gone. OSError: its cgroup does not take the limits, or we have no
                descriptors left.
        """
        self.pool = pool
        self.guest = guest
        cgroup = guest.jail.jail_slot.cgroup
        assert cgroup is not None
        cgroup.limit(standby.limits.memory_bytes + INTERPRETER_BYTES[guest.kind], standby.limits.processes)
        self.door, their_door = channel.pair()
        self.door.setblocking(False)
        their_stdin = self.stdin = -1
        try:
            their_stdin, self.stdin = os.pipe2(os.O_CLOEXEC)
            os.fchmod(their_stdin, 0o666)  # as `Run` does
            os.set_blocking(self.stdin, False)
            theirs = [their_stdin] if standby.becomes else [their_door.fileno(), their_stdin]
            guest.send(_order(standby), theirs)
        except BaseException as error:
            self.close()
            if isinstance(error, (channel.ChannelClosed, BlockingIOError)):
                raise ZygoteDied("the guest was gone before its command came") from error
            raise
        finally:
            their_door.close()
            if their_stdin >= 0:
                os.close(their_stdin)

    def take_stdin(self) -> int:
        """The write end of its standard input; the caller owns it now."""
        taken, self.stdin = self.stdin, -1
        return taken

    def close(self) -> None:
        """Close our ends."""
        self.door.close()
        if self.stdin >= 0:
            os.close(self.take_stdin())


def _order(standby: Standby) -> bytes:
    """As `inside/guest/program.py` reads it: no program, and a command to become."""
    has_door = not standby.becomes
    command = {"argv": standby.argv, "path": standby.path, "has_door": has_door}
    message = {
        "files": [],
        "args": [],
        "env": dict(standby.env),
        "displays": False,
        "keep_work_dir": has_door,
        "extras": [("command", command, int(has_door))],
    }
    return channel.build(message)


class NotBegun(ZygoteDied):
    """The process has died while it waited; nobody has heard of the program yet."""


class NotTaken(ZygoteDied):
    """The process that waited has ended, and nothing of the program was run."""


class StandbyRun(Run):
    """A run whose process was there before its program."""

    def __init__(
        self,
        waiting: Waiting,
        standby: Standby,
        execution: Execution,
        watcher: Watcher | None,
        bounds: RequestSettings,
    ) -> None:
        super().__init__(waiting.guest, execution, watcher, bounds, waiting.pool, False, (), "")
        self._waiting = waiting
        self._standby = standby

    def _send_program(self) -> None:
        if self._standby.packet:
            try:
                channel.send_packet(self._waiting.door, self._standby.packet)
            except (channel.ChannelClosed, BlockingIOError) as error:
                raise NotBegun("the process that waited for this program is gone") from error
        self._stdin = self._waiting.take_stdin()
        self._stdin_left = memoryview(self._execution.stdin)
        self._feed_stdin()

    def _check_start(self, status: int | None) -> None:
        if self._standby.packet:
            self._receive_from_door()
        super()._check_start(status)

    def _receive_from_door(self) -> None:
        """Once, before the program begins, our own code says that it has taken it; then its end of the door closes."""
        try:
            message, _, _ = channel.receive(self._waiting.door)
        except (BlockingIOError, channel.ChannelClosed):
            if not self._is_killed():
                raise NotTaken("the process that waited for this program ended before it") from None
            return
        if message:
            self._failure = ("files", str(message.get("failed")))

    async def _with_artifacts(self, evidence: Evidence) -> Evidence:
        return await super()._with_artifacts(evidence) if self._execution.artifacts else evidence

    async def play(self) -> Evidence:
        """As any run; what a compiler wrote is its output file."""
        seen = await super().play()
        if not self._standby.becomes:
            return seen
        if seen.stdout_cut:
            raise TooLarge("the compiled program is larger than the compiler may write")
        compiled = File(path=self._standby.becomes, content=seen.stdout)
        return dataclasses.replace(seen, stdout=b"", artifacts=(compiled,) if seen.exit_code == 0 else ())


@dataclass(slots=True)
class _Kind:
    """The waiting processes of one kind, in one pool."""

    pool: LocalPool
    standby: Standby
    used_at: float
    waiting: deque[Waiting] = dataclasses.field(default_factory=deque)
    starting: int = 0
    failures: int = 0
    times_asked: int = 0


class StandbyPool:
    """Every waiting process of a sandbox: a few of each kind that was asked for lately. Bound to one event loop."""

    def __init__(self, settings: Settings) -> None:
        # Where nothing is made ahead, nothing comes after what is run now.
        self._kept = settings.languages.standby_processes if settings.pool.ready_guests else 0
        self._idle_seconds = settings.pool.idle_seconds
        self._default_limits = settings.default_limits
        self._bounds = settings.request
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs = 0

    async def run(
        self, pool: LocalPool, standby: Standby, execution: Execution, watcher: Watcher | None
    ) -> Evidence | None:
        """Run a program by a process that waits for such; None: there is none, and nothing was run."""
        waiting = self._take(pool, standby, execution)
        if waiting is None:
            return None
        try:
            if standby.becomes:
                execution = _as_standard_input(execution, self._bounds)
            evidence = await StandbyRun(waiting, standby, execution, watcher, self._bounds).play()
            self._runs += 1
            self._kind(pool, standby).failures = 0
            return evidence
        except NotBegun:
            return None
        except NotTaken:
            self._kind(pool, standby).failures += 1
            if watcher is not None:  # it has heard that the program began
                raise
            return None
        finally:
            waiting.close()
            pool.release(waiting.guest)
            asyncio.get_running_loop().call_soon(pool.refill, BARE)

    def _take(self, pool: LocalPool, standby: Standby, execution: Execution) -> Waiting | None:
        if not self._kept or not pool.is_ready_for(execution.limits):
            return None
        kind = self._kind(pool, standby)
        kind.used_at = asyncio.get_running_loop().time()
        kind.times_asked += 1
        if not kind.waiting:
            return None
        waiting = kind.waiting.popleft()
        waiting.guest.ended = None
        return waiting

    def refill(self) -> None:
        """Start what is missing. Called after an answer, never before: a compiler's would slow the program down."""
        for kind in self._kinds.values():
            if not kind.pool.is_lost and (kind.standby.is_usual or kind.times_asked > 1):
                self._fill(kind)

    def _fill(self, kind: _Kind) -> None:
        while len(kind.waiting) + kind.starting < self._kept and kind.failures < _FAILURES_MAX:
            kind.starting += 1
            task = asyncio.get_running_loop().create_task(self._start(kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def let_go_of_unused(self) -> None:
        """End those of kinds that nobody has asked for in a while."""
        now = asyncio.get_running_loop().time()
        for key, kind in list(self._kinds.items()):
            if kind.pool.is_lost or now - kind.used_at > self._idle_seconds:
                self._give_up(key)

    def leave(self, pool: LocalPool) -> None:
        """End those of a pool that nobody comes to any more."""
        for key in [key for key, kind in self._kinds.items() if kind.pool is pool]:
            self._give_up(key)

    async def close(self) -> None:
        """End all of them; the worlds that they live in still have to be closed."""
        self._kept = 0
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in list(self._kinds):
            self._give_up(key)

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring."""
        waiting = sum(len(kind.waiting) for kind in self._kinds.values())
        return {"standby_processes": waiting, "standby_runs": self._runs}

    def _kind(self, pool: LocalPool, standby: Standby) -> _Kind:
        key = (pool, standby.kind)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _KINDS_MAX:
                self._give_up(min(self._kinds, key=lambda each: self._kinds[each].used_at))
            kind = self._kinds[key] = _Kind(pool, standby, asyncio.get_running_loop().time())
        return kind

    def _give_up(self, key: tuple[Any, ...]) -> None:
        kind = self._kinds.pop(key)
        for waiting in kind.waiting:
            waiting.guest.jail.kill()
        kind.waiting.clear()

    async def _start(self, kind: _Kind) -> None:
        try:
            guest = await kind.pool.lease(BARE, self._default_limits)
            try:
                waiting = Waiting(kind.pool, guest, kind.standby)
            except BaseException:
                kind.pool.release(guest)
                raise
        except (BelljarError, OSError) as error:
            kind.failures += 1
            _log.warning("%s was not started ahead: %s", kind.standby.path, error)
            return
        finally:
            kind.starting -= 1
        kind.pool.keep(guest)
        kind.pool.refill(BARE)
        guest.ended = lambda status, _: self._ended_unused(kind, waiting, status)
        if (kind.pool, kind.standby.kind) in self._kinds:
            kind.waiting.append(waiting)
        else:  # given up meanwhile
            guest.jail.kill()

    def _ended_unused(self, kind: _Kind, waiting: Waiting, status: int | None) -> None:
        if waiting in kind.waiting:  # else it was given up
            kind.waiting.remove(waiting)
            if not kind.pool.is_lost:
                kind.failures += 1
                _log.warning("%s ended before its program came (status %s)", kind.standby.path, status)
        waiting.close()
        kind.pool.release(waiting.guest)
