"""One cell of a session, from its first byte in to its last byte out.

A cell has pipes of its own, made for it and sent with it. When the guest reports that the cell has ended, all that was
written by then is in those pipes, so exactly that much is read; what comes later, from processes that the cell has left
behind, is shown with the next cell.

Whether the code raised is reported by the guest: only it can know, and only its own caller reads it. Time, memory, CPU
and death are judged from outside, as for any run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import struct
import termios
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from belljar import channel
from belljar.aio import wait_until_done
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.pool import descriptors
from belljar.backends.local.run.artifacts import Collected
from belljar.backends.local.run.displays import DisplayReader, read_error
from belljar.backends.local.run.output import READ_BYTES, MonitoredRun, Stream
from belljar.backends.local.run.run import in_memfd
from belljar.backends.local.session.between_cells import Background
from belljar.contract.backend import Watcher
from belljar.contract.errors import JailSetupFailed, ZygoteDied
from belljar.contract.execution import Evidence, Execution, ProgramError
from belljar.jail.cgroups import JailCgroup
from belljar.settings import RequestSettings

_SETTLE_SECONDS = 0.02
_AGAIN_SECONDS = 1.5  # one interrupt may be swallowed
_INLINE_BYTES = 64 * 1024
GRACE_SECONDS = 5.0
WALL_SECONDS_MAX = 30.0
_LOOK_AGAIN_SECONDS_MIN = 0.05


class End(NamedTuple):
    """How a session ended, as seen from outside."""

    reason: str
    status: int | None  # of its process; None: unknown
    oom_kills: int
    cpu_seconds: float
    memory_peak_bytes: int


class CellHost(Protocol):
    """The session that a cell runs in."""

    cgroup: JailCgroup | None
    background: Background

    def send(self, packet: bytes, descriptors: list[int]) -> None:
        """Send a packet to the guest."""

    def signal_interrupt(self) -> None:
        """Send SIGINT to the guest's own process."""

    def pids(self) -> list[int]:
        """The processes in it, for the grace period of an interrupt."""

    def end(self, reason: str) -> None:
        """Kill every process in it."""

    async def collect(self, cell: Execution) -> Collected:
        """The files that the cell's globs match."""


class CellRun(MonitoredRun):
    """A running cell. `finish` must be awaited to its end, or cancelled: both leave the session idle or ended."""

    def __init__(
        self, host: CellHost, number: int, cell: Execution, watcher: Watcher | None, bounds: RequestSettings
    ) -> None:
        super().__init__(cell.limits, host.cgroup, watcher, bounds, asyncio.get_running_loop())
        self.number = number
        self._host = host
        self._cell = cell
        self._answered: asyncio.Future[Mapping[str, Any] | End] = self._loop.create_future()
        self._is_stopping = False
        self._pictures: DisplayReader = DisplayReader(bounds)
        self.feature: GuestFeature | None = None  # prepared before this cell: the tools of a branch

    def start(self) -> None:
        """Send the cell. If this raises, the guest has received nothing.

        Raises:
            ZygoteDied: the guest does not read its socket.
            Overloaded: no descriptors are left.
            JailSetupFailed: the cell's pipes cannot be made.
        """
        if self._cgroup is not None:
            self._cgroup.begin()
        self._started_at = time.monotonic()
        theirs: list[int] = []
        try:
            self._open_pipes(theirs)
            code = self._cell.code.encode()
            message: dict[str, Any] = {"cell": self.number}
            if self.feature is not None:
                message["extras"] = [(self.feature.name, self.feature.argument)]
                theirs.append(os.dup(self.feature.descriptors[0]))
            if len(code) > _INLINE_BYTES:
                theirs.insert(0, in_memfd(code))
                message["in_memfd"], code = True, b""
            background = self._host.background.take()
            self._host.send(channel.build(message, code), theirs)
        except (channel.ChannelClosed, BlockingIOError) as error:
            self._close_pipes()
            raise ZygoteDied("the session's process does not read its socket") from error
        except OSError as error:
            self._close_pipes()
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise JailSetupFailed("cell", str(error)) from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        if self._watcher is not None:
            self._watcher.started()
        self._streams[1].take(background)
        self._pass_on(self._streams[1], background)
        if self._watcher is not None:
            self._settle_in()
        else:
            self._timers["settle"] = self._loop.call_later(_SETTLE_SECONDS, self._settle_in)

    def _open_pipes(self, theirs: list[int]) -> None:
        ours: list[int] = []
        try:
            for _ in range(3):
                read, write = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(read, False)
                ours.append(read)
                theirs.append(write)
        except OSError:
            for pipe in ours:
                os.close(pipe)
            raise
        for pipe in theirs[:2]:
            os.fchmod(pipe, 0o666)  # it is ours; a program that opens /dev/stdout must be able to
        output_bytes = self._limits.output_bytes
        self._streams = Stream("stdout", ours[0], output_bytes), Stream("stderr", ours[1], output_bytes)
        self._picture_pipe = ours[2]

    # ---- while it runs

    def _settle_in(self) -> None:
        """The cell takes a while: read its output as it comes, and start its clocks."""
        elapsed = time.monotonic() - self._started_at
        self._attend(elapsed)
        self._watch(self._picture_pipe, self._on_picture)
        left = max(0.0, self._limits.wall_seconds - elapsed)
        self._timers["wall"] = self._loop.call_later(left, self._on_deadline)

    def has_ended(self) -> bool:
        return self._answered.done()

    def _on_deadline(self) -> None:
        self._deadline_passed = True
        self.stop()

    def stop(self) -> None:
        """Interrupt the cell, and end the session if that does not bring it back."""
        if not self._is_stopping and not self._answered.done():
            self._is_stopping = True
            self._grace = InterruptGrace(self._host.pids())
            self._check_grace()
            self._interrupt_again()

    def _check_grace(self) -> None:
        if self._answered.done():
            return
        left = self._grace.left_seconds()
        if left:
            self._timers["grace"] = self._loop.call_later(left, self._check_grace)
        else:
            self._host.end("timeout")

    def _interrupt_again(self) -> None:
        self._host.signal_interrupt()
        self._timers["again"] = self._loop.call_later(_AGAIN_SECONDS, self._interrupt_again)

    # ---- when it ends

    def answer(self, message: Mapping[str, Any] | End) -> None:
        """Take the guest's report that the cell has ended, or the end of the session."""
        if not self._answered.done():
            self._answered.set_result(message)

    async def finish(self) -> Evidence:
        """Wait for the end and report what was seen.

        Raises:
            ZygoteDied: the session was lost, and the result of the cell is unknown.
        """
        try:
            answer = await self._wait()
            wall_seconds = time.monotonic() - self._started_at
            self._stop_attending()
            self._read_the_rest(everything=isinstance(answer, End))
            if isinstance(answer, End):
                return self._evidence_of_end(answer, wall_seconds)
            return await self._evidence(answer, wall_seconds)
        finally:
            self._stop_attending()
            self._close_pipes()

    async def _wait(self) -> Mapping[str, Any] | End:
        try:
            return await asyncio.shield(self._answered)
        except asyncio.CancelledError:
            self.stop()
            await wait_until_done(self._answered)
            self._stop_attending()
            self._read_the_rest(everything=False)  # else it would be shown as written between cells
            raise

    def _read_the_rest(self, everything: bool) -> None:
        """Read what is in the pipes now, and no more: what still writes to them is not the cell."""
        for stream in self._streams:
            left = 1 << 30 if everything else _readable_bytes(stream.descriptor)
            while left > 0 and stream.is_open:
                before = stream.seen_bytes
                chunk = stream.read(left)
                if chunk is None:
                    break
                left -= stream.seen_bytes - before
                self._pass_on(stream, chunk)
        left = 1 << 30 if everything else _readable_bytes(self._picture_pipe)
        while left > 0 and (count := self._on_picture(min(left, READ_BYTES))):
            left -= count

    async def _evidence(self, answer: Mapping[str, Any], wall_seconds: float) -> Evidence:
        cgroup = self._cgroup
        cpu_seconds = cgroup.cpu_seconds() if cgroup is not None else 0.0
        peak = cgroup.memory_peak_bytes() if cgroup is not None else 0
        error = read_error(answer.get("error"))
        evidence = self._seen(
            exit_code=0 if error is None else 1,
            error=error,
            wall_seconds=wall_seconds,
            cpu_seconds=cpu_seconds,
            memory_peak_bytes=peak,
        )
        return await self._with_artifacts(evidence) if self._cell.artifacts else evidence

    async def _with_artifacts(self, evidence: Evidence) -> Evidence:
        found = await self._host.collect(self._cell)
        note = found.note_below(self._streams[1].kept)
        if note and self._watcher is not None:
            self._watcher.wrote("stderr", note.encode())
        return dataclasses.replace(evidence, artifacts=found.files, note=note)

    def _evidence_of_end(self, end: End, wall_seconds: float) -> Evidence:
        if end.status is None and not self._is_stopping and not end.oom_kills:
            raise ZygoteDied("the session was lost; open a new one")
        code = os.waitstatus_to_exitcode(end.status) if end.status is not None else None
        return self._seen(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            oom_kills=end.oom_kills,
            error=ProgramError(type="SessionEnded", message=f"the session has ended: {end.reason}", traceback=()),
            wall_seconds=wall_seconds,
            cpu_seconds=end.cpu_seconds,
            memory_peak_bytes=end.memory_peak_bytes,
        )

    def _seen(self, **facts: Any) -> Evidence:
        stdout, stderr = self._streams
        if self._pictures.dropped or self._pictures.is_refused:
            self._note_dropped(stderr)
        return Evidence(
            deadline_passed=self._deadline_passed,
            cpu_exhausted=self._cpu_exhausted,
            output_flooded=self._flooded,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            stdout_cut=stdout.was_cut,
            stderr_cut=stderr.was_cut,
            displays=tuple(self._pictures.complete),
            **facts,
        )

    def _note_dropped(self, stderr: Stream) -> None:
        bounds = self._bounds
        what = f"{self._pictures.dropped or 'Some'} of what this cell showed was dropped"
        most = f"a cell may show {bounds.display_count} forms of {bounds.display_bytes >> 20} MiB together"
        note = f"[{what}: {most}]\n".encode()
        stderr.kept += note
        stderr.seen_bytes += len(note)
        if self._watcher is not None:
            self._watcher.wrote(stderr.name, note)

    def _close_pipes(self) -> None:
        for stream in self._streams:
            self._host.background.adopt(stream)
        self._streams = ()
        if self._picture_pipe >= 0:
            os.close(self._picture_pipe)
            self._picture_pipe = -1


def _readable_bytes(pipe: int) -> int:
    (count,) = struct.unpack("=i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


class InterruptGrace:
    """How long to wait for an interrupted cell, excluding time it spent waiting for a CPU. Begins when created."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._begun_at = time.monotonic()
        self._waited_before = {pid: cpu_wait_seconds(pid) for pid in pids}

    def left_seconds(self) -> float:
        """How long to wait before the next check; 0: the grace period is over."""
        elapsed = time.monotonic() - self._begun_at
        waited = max((cpu_wait_seconds(pid) - before for pid, before in self._waited_before.items()), default=0.0)
        left = min(GRACE_SECONDS - elapsed + max(0.0, waited), WALL_SECONDS_MAX - elapsed)
        return max(_LOOK_AGAIN_SECONDS_MIN, left) if left > 0 else 0.0


def cpu_wait_seconds(pid: int) -> float:
    """How long the first thread of a process has waited for a CPU; 0 if that is unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
