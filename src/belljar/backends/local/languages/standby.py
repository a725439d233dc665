"""Commands started ahead of demand: jailed, executed, and waiting for the program they will run.

A runtime that has threads before its first line, such as Node, cannot be forked. So the runtime itself is started
ahead, in a jail of its own, in the same way as every command: a waiting process is as isolated as any. It runs one
program and ends.

Two kinds wait. One reads its program from a socket, its *door*, and writes its files itself (`languages/standby.cjs`).
The other is a compiler whose standard input is the source, and whose standard output is the compiled file.

The time that a program is charged for begins when it is sent. What the runtime took before that does not count.
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
from belljar.aio import cancel_all
from belljar.backends.local.pool.guests import Guest
from belljar.backends.local.pool.ready_guests import INTERPRETER_BYTES, ReadyGuests
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
    """A command that can be started ahead of a program, and how that program is sent to it."""

    argv: tuple[str, ...]
    path: str
    env: tuple[tuple[str, str], ...]
    limits: Limits
    packet: bytes = b""  # for its door; none: the source is its standard input
    becomes: str = ""  # the file that its standard output is, if it is a compiler
    is_usual: bool = True  # many programs need it; any other kind waits only once two programs have needed it

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for all programs that the same waiting process can run."""
        return self.path, self.argv, self.env, self.limits.memory_bytes


def build_packet(files: list[tuple[str, bytes, bool]], args: tuple[str, ...], has_stdin: bool) -> bytes:
    """A program as `languages/standby.cjs` reads it: paths, contents, and whether each was compiled here."""
    order = {
        "files": [(path, len(content), is_compiled) for path, content, is_compiled in files],
        "args": args,
        "stdin": has_stdin,
    }
    return channel.build(order, b"".join(content for _, content, _ in files))


def _as_standard_input(execution: Execution, bounds: RequestSettings) -> Execution:
    """For a compiler that waits: it reads the program as its input, and may write as much as its files may hold."""
    limits = dataclasses.replace(execution.limits, output_bytes=bounds.files_bytes)
    return dataclasses.replace(execution, stdin=execution.code.encode(), artifacts=(), limits=limits)


class Waiting:
    """A process that waits, with the host's ends of its door and its standard input."""

    def __init__(self, guests: ReadyGuests, guest: Guest, standby: Standby) -> None:
        """Have a guest execute the command.

        Raises:
            ZygoteDied: the guest is gone. OSError: its cgroup refuses the limits, or no descriptors are left.
        """
        self.guests = guests
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
        self.door.close()
        if self.stdin >= 0:
            os.close(self.take_stdin())


def _order(standby: Standby) -> bytes:
    """The order as `inside/guest/program.py` reads it: no program, and a command to execute."""
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
    """The process has died while it waited, before the program was sent."""


class NotTaken(ZygoteDied):
    """The process that waited has ended without running the program."""


class StandbyRun(Run):
    """A run whose process was started before its program came."""

    def __init__(
        self,
        waiting: Waiting,
        standby: Standby,
        execution: Execution,
        watcher: Watcher | None,
        bounds: RequestSettings,
    ) -> None:
        super().__init__(waiting.guest, execution, watcher, bounds, waiting.guests, False, (), "")
        self._waiting = waiting
        self._standby = standby

    def send_program(self) -> None:
        """Send the program through the door that the process waits at, and feed its standard input."""
        if self._standby.packet:
            try:
                channel.send_packet(self._waiting.door, self._standby.packet)
            except (channel.ChannelClosed, BlockingIOError) as error:
                raise NotBegun("the process that waited for this program is gone") from error
        self._stdin = self._waiting.take_stdin()
        self._stdin_left = memoryview(self._execution.stdin)
        self._feed_stdin()

    def check_start(self, status: int | None) -> None:
        """Raises NotTaken, too, if the process did not take the program."""
        if self._standby.packet:
            self._receive_from_door()
        super().check_start(status)

    def _receive_from_door(self) -> None:
        """Read whether our own code in there has taken the program; it reports that once, before the program begins."""
        try:
            message, _, _ = channel.receive(self._waiting.door)
        except (BlockingIOError, channel.ChannelClosed):
            if not self._is_killed():
                raise NotTaken("the process that waited for this program ended before it") from None
            return
        if message:
            self._failure = ("files", str(message.get("failed")))

    async def with_artifacts(self, evidence: Evidence) -> Evidence:
        """Add files only if some were requested: the work directory of a waiting process is always sent."""
        return await super().with_artifacts(evidence) if self._execution.artifacts else evidence

    async def play(self) -> Evidence:
        """Run to the end; what a compiler wrote is its output file."""
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

    guests: ReadyGuests
    standby: Standby
    used_at: float
    waiting: deque[Waiting] = dataclasses.field(default_factory=deque)
    starting: int = 0
    failures: int = 0
    times_used: int = 0


class StandbyPool:
    """Every waiting process of a sandbox: a few of each kind that was used lately. Bound to one event loop."""

    def __init__(self, settings: Settings) -> None:
        # A sandbox that makes no guests ahead runs only one program.
        self._kept = settings.languages.standby_processes if settings.pool.ready_guests else 0
        self._idle_seconds = settings.pool.idle_seconds
        self._default_limits = settings.default_limits
        self._bounds = settings.request
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs = 0

    async def run(
        self, guests: ReadyGuests, standby: Standby, execution: Execution, watcher: Watcher | None
    ) -> Evidence | None:
        """Run a program in a process that waits for it; None: no such process exists, and nothing was run."""
        waiting = self._take(guests, standby, execution)
        if waiting is None:
            return None
        try:
            if standby.becomes:
                execution = _as_standard_input(execution, self._bounds)
            evidence = await StandbyRun(waiting, standby, execution, watcher, self._bounds).play()
            self._runs += 1
            self._kind(guests, standby).failures = 0
            return evidence
        except NotBegun:
            return None
        except NotTaken:
            self._kind(guests, standby).failures += 1
            if watcher is not None:  # it was notified that the program began
                raise
            return None
        finally:
            waiting.close()
            guests.release(waiting.guest)
            asyncio.get_running_loop().call_soon(guests.refill, BARE)

    def _take(self, guests: ReadyGuests, standby: Standby, execution: Execution) -> Waiting | None:
        if not self._kept or not guests.is_ready_for(execution.limits):
            return None
        kind = self._kind(guests, standby)
        kind.used_at = asyncio.get_running_loop().time()
        kind.times_used += 1
        if not kind.waiting:
            return None
        waiting = kind.waiting.popleft()
        waiting.guest.ended = None
        return waiting

    def refill(self) -> None:
        """Start what is missing. Called after an answer, never before: it would slow the program down."""
        for kind in self._kinds.values():
            if not kind.guests.is_lost and (kind.standby.is_usual or kind.times_used > 1):
                self._fill(kind)

    def _fill(self, kind: _Kind) -> None:
        while len(kind.waiting) + kind.starting < self._kept and kind.failures < _FAILURES_MAX:
            kind.starting += 1
            task = asyncio.get_running_loop().create_task(self._start(kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def let_go_of_unused(self) -> None:
        """End those of kinds that were unused for a while."""
        now = asyncio.get_running_loop().time()
        for key, kind in list(self._kinds.items()):
            if kind.guests.is_lost or now - kind.used_at > self._idle_seconds:
                self._give_up(key)

    def leave(self, guests: ReadyGuests) -> None:
        """End those of a pool that gets no more programs."""
        for key in [key for key, kind in self._kinds.items() if kind.guests is guests]:
            self._give_up(key)

    async def close(self) -> None:
        """End all of them, before their pools are closed."""
        self._kept = 0
        await cancel_all(self._tasks)
        for key in list(self._kinds):
            self._give_up(key)

    def facts(self) -> Mapping[str, int]:
        waiting = sum(len(kind.waiting) for kind in self._kinds.values())
        return {"standby_processes": waiting, "standby_runs": self._runs}

    def _kind(self, guests: ReadyGuests, standby: Standby) -> _Kind:
        key = (guests, standby.kind)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _KINDS_MAX:
                self._give_up(min(self._kinds, key=lambda each: self._kinds[each].used_at))
            kind = self._kinds[key] = _Kind(guests, standby, asyncio.get_running_loop().time())
        return kind

    def _give_up(self, key: tuple[Any, ...]) -> None:
        kind = self._kinds.pop(key)
        for waiting in kind.waiting:
            waiting.guest.jail.kill()
        kind.waiting.clear()

    async def _start(self, kind: _Kind) -> None:
        try:
            guest = await kind.guests.lease(BARE, self._default_limits)
            try:
                waiting = Waiting(kind.guests, guest, kind.standby)
            except BaseException:
                kind.guests.release(guest)
                raise
        except (BelljarError, OSError) as error:
            kind.failures += 1
            _log.warning("%s was not started ahead: %s", kind.standby.path, error)
            return
        finally:
            kind.starting -= 1
        kind.guests.keep(guest)
        kind.guests.refill(BARE)
        guest.ended = lambda status, _: self._ended_unused(kind, waiting, status)
        if (kind.guests, kind.standby.kind) in self._kinds:
            kind.waiting.append(waiting)
        else:  # its kind was given up meanwhile
            guest.jail.kill()

    def _ended_unused(self, kind: _Kind, waiting: Waiting, status: int | None) -> None:
        if waiting in kind.waiting:  # else its kind was given up
            kind.waiting.remove(waiting)
            if not kind.guests.is_lost:
                kind.failures += 1
                _log.warning("%s ended before its program came (status %s)", kind.standby.path, status)
        waiting.close()
        kind.guests.release(waiting.guest)
