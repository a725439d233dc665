"""One program in one guest, from its first byte in to its last byte out.

Most programs end within milliseconds, so for those nothing is watched at all: the pipes are read once, when the
zygote reports that the guest has ended. Only a program that lasts longer, or that has a watcher, gets readers and
timers of its own.

Every fact comes from outside: wait status from the zygote, memory and CPU from the cgroup, clocks from the host. The
guest may live in a local jail or inside gVisor (`guest` has what is needed of it).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import signal
import time
from collections.abc import Sequence

from belljar import channel
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.ready_guests import INTERPRETER_BYTES
from belljar.backends.local.run import artifacts
from belljar.backends.local.run.displays import PictureReader
from belljar.backends.local.run.guest import RunGuest, RunPool
from belljar.backends.local.run.output import MonitoredRun, Stream
from belljar.contract.backend import Watcher
from belljar.contract.errors import InvalidExecution, JailSetupFailed, ZygoteDied
from belljar.contract.execution import Evidence, Execution
from belljar.jail import policy
from belljar.settings import RequestSettings

_SETTLE_SECONDS, _SETTLE_SECONDS_MAX = 0.02, 0.1
_SETTLE_SECONDS_EACH = 0.005  # the more run at once, the longer each of them takes
_PIPE_BYTES = 65536
_INLINE_BYTES = 64 * 1024  # a program larger than this travels in a memfd
_STARTED = channel.NO_MESSAGE + b"started"  # as `inside/guest/program.py` sends it
_NO_DESCRIPTORS = "descriptors"  # the step that fails when the host has no descriptors left
_SIGKILL = int(signal.SIGKILL)
_START_FAILED = 71 << 8  # wait status of a guest that could not enter its jail: `zygote/server.py`
_WORD_BYTES = 4096  # for the reason why it could not start


class Run(MonitoredRun):
    """A guest with its program. Await `play` to its end, or cancel it: both leave nothing running.

    Subclasses may extend `send_program`, `evidence`, which begins with `check_start`, and `with_artifacts`.
    """

    silence_seconds = 10.0  # for a guest to start, or for the report that it is dead
    # Class-level defaults of what few runs ever change, so that creating one costs less.
    _stdin = _work_dir = -1
    _stdin_left = memoryview(b"")
    _was_silent = _has_started = _has_settled = False
    _failure: tuple[str, str] | None = None  # why the guest could not start: step and reason

    def __init__(
        self,
        guest: RunGuest,
        execution: Execution,
        watcher: Watcher | None,
        bounds: RequestSettings,
        pool: RunPool,
        shows: bool,  # whether pictures may come
        extras: Sequence[GuestFeature] = (),
        source: str = policy.PROGRAM_NAME,
    ) -> None:
        limits, loop = execution.limits, pool.loop
        super().__init__(limits, guest.jail.jail_slot.cgroup, watcher, bounds, loop)
        self.guest = guest
        self._execution = execution
        self._pool = pool
        self._shows = shows
        self._extras = extras
        self._source = source
        output_bytes = limits.output_bytes
        self._streams = Stream("stdout", guest.stdout, output_bytes), Stream("stderr", guest.stderr, output_bytes)
        self._ended: asyncio.Future[tuple[int | None, float]] = loop.create_future()
        self._pictures = PictureReader(bounds) if shows else None

    def _start(self) -> None:
        """Send the program."""
        guest, limits, cgroup = self.guest, self._limits, self._cgroup
        guest.ended = self._on_ended
        if cgroup is not None:
            try:
                cgroup.limit(limits.memory_bytes + INTERPRETER_BYTES[guest.kind], limits.processes)
                cgroup.begin()
            except OSError as error:
                raise JailSetupFailed("cgroup", str(error)) from error
            guest.jail.on_memory_event = self._on_memory_event
        self._started_at = time.monotonic()
        self.send_program()
        if self._watcher is not None:
            self._watcher.started()
            self.settle_in()
        else:
            patience = min(_SETTLE_SECONDS + self._pool.busy_guests * _SETTLE_SECONDS_EACH, _SETTLE_SECONDS_MAX)
            self._pool.patience.wait_with(self, min(patience, limits.wall_seconds))

    def send_program(self) -> None:
        """Send the program, with its files and descriptors.

        Raises:
            ZygoteDied: the guest is gone.
        """
        files = self._execution.files
        has_many = bool(files) and sum(len(file.content) for file in files) > _INLINE_BYTES
        packet = program_packet(self._execution, self._shows, self._extras, self._source, without_files=has_many)
        try:
            if has_many or self._shows or self._extras or self._execution.stdin or len(packet) > _INLINE_BYTES:
                self._send_with_descriptors(packet, has_many)
            else:
                self.guest.send(packet)
        except (channel.ChannelClosed, BlockingIOError) as error:
            raise ZygoteDied("the guest was gone before its program came") from error

    def _send_with_descriptors(self, packet: bytes, lacks_files: bool) -> None:
        """In the order in which `inside/guest/program.py` takes them."""
        own: list[int] = []
        sent: list[int] = []
        try:
            if lacks_files or len(packet) > _INLINE_BYTES:
                contents = [file.content for file in self._execution.files] if lacks_files else ()
                own.append(in_memfd(packet, *contents))
                packet = channel.build({"in_memfd": True})
            if self._shows:
                own.append(self._open_pictures())
            sent += own
            for extra in self._extras:
                sent += extra.descriptors
            if self._execution.stdin:
                own.append(self._open_stdin(self._execution.stdin))
                sent.append(own[-1])
            self.guest.send(packet, sent)
        finally:
            for descriptor in own:
                os.close(descriptor)

    def _open_pictures(self) -> int:
        self._picture_pipe, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._picture_pipe, False)
        self._watch(self._picture_pipe, self._on_picture)
        return theirs

    def _open_stdin(self, content: bytes) -> int:
        theirs, self._stdin = os.pipe2(os.O_CLOEXEC)
        os.fchmod(theirs, 0o666)  # a program may open /dev/stdin, which belongs to us
        os.set_blocking(self._stdin, False)
        self._stdin_left = memoryview(content)
        self._feed_stdin()
        return theirs

    def _feed_stdin(self) -> None:
        try:
            while self._stdin_left:
                self._stdin_left = self._stdin_left[os.write(self._stdin, self._stdin_left[:_PIPE_BYTES]) :]
        except BlockingIOError:
            if self._stdin not in self._watched:
                self._watched.add(self._stdin)
                self._loop.add_writer(self._stdin, self._feed_stdin)
            return
        except BrokenPipeError:
            pass  # the program has closed its end
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            if self._stdin in self._watched:
                self._watched.discard(self._stdin)
                self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    # ---- while it runs

    def settle_in(self) -> None:
        """The program has lasted for a while: read its output as it arrives, and set its timers."""
        self._has_settled = True
        elapsed = time.monotonic() - self._started_at
        self._attend(elapsed)
        self._await_start(elapsed)
        self._timers["start"] = self._loop.call_later(self.silence_seconds, self._check_started)

    def has_ended(self) -> bool:
        return self._ended.done()

    def stop(self) -> None:
        """End every process in its jail."""
        self.guest.jail.kill()

    def _await_start(self, elapsed_seconds: float = 0.0) -> None:
        """Start the wall clock with the program: a busy machine may take longer to fork it than it may run."""
        if not self._has_started:
            self._read_start()
        if self._has_started:
            left = max(0.0, self._limits.wall_seconds - elapsed_seconds)
            self._timers["wall"] = self._loop.call_later(left, self._on_deadline)
        else:
            self._timers["wall"] = self._loop.call_later(_SETTLE_SECONDS, self._await_start)

    def _read_start(self) -> None:
        """Read the one packet that our own code in the guest sends before the program starts."""
        peer = self.guest.channel
        try:
            if self._execution.artifacts:
                message, _, sent = channel.receive(peer, 1, channel.NOW)
                self._work_dir = sent[0] if sent else -1
            else:
                packet = peer.recv(_WORD_BYTES, channel.NOW)
                message = {} if packet == _STARTED else channel.parse(packet)[0]
        except channel.DescriptorsLost:  # it has started, but what it made cannot be fetched
            self._failure, message = (_NO_DESCRIPTORS, ""), {}
        except (BlockingIOError, ConnectionError, channel.ChannelClosed):
            return
        if message:
            self._failure = (str(message.get("failed")), str(message.get("reason")))
        else:
            self._has_started = True
            self.guest.jail.is_unread = False

    def _on_deadline(self) -> None:
        self._deadline_passed = True
        self.guest.jail.kill()
        self._timers["silence"] = self._loop.call_later(self.silence_seconds, self._on_silence)

    def _check_started(self) -> None:
        self._read_start()
        if not self._has_started:
            self._on_silence()

    def _on_silence(self) -> None:
        """Nothing reported the end of the guest: a process of ours is stuck, through no fault of the program."""
        self._was_silent = True
        self._pool.unstick(self.guest)
        self._timers["silence"] = self._loop.call_later(self.silence_seconds, self._on_silence)

    def _on_memory_event(self) -> None:
        """End the other processes too: version 1 cgroups kill only one of several."""
        if self._cgroup is not None and self._cgroup.oom_kills() > 0:
            self.stop()

    # ---- when it ends

    def _on_ended(self, status: int | None, cpu_seconds: float) -> None:
        if not self._ended.done():
            self._ended.set_result((status, cpu_seconds))

    async def play(self) -> Evidence:
        """Send the program, wait for its end and report what was seen.

        Raises:
            ZygoteDied: the guest was lost without running anything; the same request may be tried on another.
            JailSetupFailed: the guest could not be made ready.
        """
        try:
            self._start()
            try:
                status, cpu_seconds = await self._ended
            except asyncio.CancelledError:
                await self._kill_and_wait()
                raise
            wall_seconds = time.monotonic() - self._started_at
            jail, cgroup = self.guest.jail, self._cgroup
            if status in (_SIGKILL, _START_FAILED) and not self._is_killed() and jail.was_taken_away():
                self._read_start()
                if status == _SIGKILL or not self._has_started:  # a program may end with the same exit code
                    jail.kill()
                    self._pool.drop_taken_away()
                    raise ZygoteDied("the jail of this program was ended from outside, and the program with it")
            if cgroup is None or self._is_killed() or not cgroup.is_empty():
                self._stop_watching()
                await self._end_leftovers()
            else:
                jail.is_vacated = True
            evidence = self.evidence(status, cpu_seconds, wall_seconds)
            return await self.with_artifacts(evidence) if self._work_dir >= 0 else evidence
        finally:
            self._stop_watching()
            self.guest.ended = self.guest.jail.on_memory_event = None
            if self._work_dir >= 0:
                os.close(self._work_dir)
            if self._picture_pipe >= 0:
                os.close(self._picture_pipe)

    async def _kill_and_wait(self) -> None:
        """Kill every process, and return when they are dead, though cancelled again."""
        self.guest.jail.kill()
        self._stop_watching()
        while not self.guest.jail.is_gone:
            with contextlib.suppress(asyncio.CancelledError):
                await self._jail_gone()

    async def _jail_gone(self) -> None:
        """Wait until every process in the killed jail is dead, but not for a stuck process of ours."""
        jail = self.guest.jail
        while not jail.is_gone:
            await asyncio.wait([jail.gone], timeout=self.silence_seconds)
            if not jail.is_gone:
                self._pool.unstick(self.guest)

    async def _end_leftovers(self) -> None:
        """End children that outlive the program: files are read only once they are dead."""
        jail = self.guest.jail
        jail.kill()
        if self._cgroup is None or not self._cgroup.is_empty():
            try:
                await self._jail_gone()
            except asyncio.CancelledError:
                await self._kill_and_wait()
                raise

    def _is_killed(self) -> bool:
        return self._deadline_passed or self._cpu_exhausted or self._flooded

    def _stop_watching(self) -> None:
        if not self._has_settled:
            self._pool.patience.forget(self)
            if not self._watched and self._stdin < 0:
                return  # as most: nothing was watched
        if self._stdin >= 0:
            self._close_stdin()
        self._stop_attending()

    def evidence(self, status: int | None, cpu_seconds: float, wall_seconds: float) -> Evidence:
        """What was seen of the program; every process in its jail is dead."""
        self.check_start(status)
        assert status is not None
        self.read_the_rest()
        memory_peak_bytes = oom_kills = 0
        cgroup = self._cgroup
        if cgroup is not None:
            cpu_seconds, memory_peak_bytes, oom_kills = cgroup.usage()
        code = os.waitstatus_to_exitcode(status)
        stdout, stderr = self._streams
        return Evidence(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            deadline_passed=self._deadline_passed,
            cpu_exhausted=self._cpu_exhausted or (code == -_SIGKILL and cpu_seconds > self._limits.cpu_seconds),
            oom_kills=oom_kills,
            output_flooded=self._flooded,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            stdout_cut=stdout.was_cut,
            stderr_cut=stderr.was_cut,
            stderr_tail=stderr.tail,
            displays=() if self._pictures is None else tuple(self._pictures.complete),
            wall_seconds=wall_seconds,
            cpu_seconds=cpu_seconds,
            memory_peak_bytes=memory_peak_bytes,
        )

    def check_start(self, status: int | None) -> None:
        """Raise unless the program was started, and how it ended is known."""
        if not self._has_started:
            self._read_start()
        if self._failure is not None:
            step, reason = self._failure
            if step == _NO_DESCRIPTORS:
                raise descriptors.refusal()
            if step == "files":
                raise InvalidExecution(f"the files do not fit: {reason}; ask for more disk_mb", field="files")
            raise JailSetupFailed(step, reason)
        if status is None:
            raise ZygoteDied("the warm process died and took this program with it")
        if self._was_silent and self._deadline_passed:
            raise ZygoteDied("the warm process was stuck: whether this program ended in time is unknown")
        if not self._has_started:
            raise ZygoteDied(f"the guest ended before its program started (wait status {status})")

    def read_the_rest(self) -> None:
        """Read each pipe to its end, since all writers are dead: in packet mode, one read gives less than it holds."""
        while self._picture_pipe >= 0 and self._on_picture():
            pass
        for stream in self._streams:
            while stream.is_open and not self._flooded:
                before = stream.seen_bytes
                chunk = stream.read()
                count = stream.seen_bytes - before
                if not count:
                    break
                self._pass_on(stream, chunk)

    async def with_artifacts(self, evidence: Evidence) -> Evidence:
        """Add the files that it has left; called if the guest has sent its work directory."""
        with descriptors.named():
            on_work_dir = self._pool.open_work_dir(self.guest, self._work_dir)
            found = await artifacts.collect(self._execution, self._bounds, on_work_dir)
        note = found.note_below(evidence.stderr)
        if note and self._watcher is not None:
            self._watcher.wrote("stderr", note.encode())
        return dataclasses.replace(evidence, artifacts=found.files, note=note)


def program_packet(
    execution: Execution,
    shows: bool,
    extras: Sequence[GuestFeature] = (),
    source: str = policy.PROGRAM_NAME,
    *,
    without_files: bool = False,
) -> bytes:
    """The program as `inside/guest/program.py` reads it: the bare text if the request has nothing else.

    `without_files` leaves it to the caller to append the contents of the files.
    """
    code = execution.code.encode()
    if not (shows or extras or execution.args or execution.env or execution.files or execution.artifacts):
        return channel.build({}, code)
    message = {
        "files": [(source, len(code)), *((file.path, len(file.content)) for file in execution.files)],
        "args": execution.args,
        "env": dict(execution.env),
        "displays": shows,
        "keep_work_dir": bool(execution.artifacts),
        "extras": [(extra.name, extra.argument, len(extra.descriptors)) for extra in extras],
    }
    contents = () if without_files else (file.content for file in execution.files)
    return channel.build(message, b"".join((code, *contents)))


def in_memfd(*contents: bytes) -> int:
    """A sealed file in memory, for what is too large for a packet; the caller owns it."""
    descriptor = os.memfd_create("belljar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    for content in contents:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return descriptor
