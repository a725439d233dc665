"""A session: a guest that stays in its jail and runs one cell after the other.

The guest sends its first message, with its directories and a pidfd, before it gets anything of the caller's; even so
the directories are checked. Everything that it sends later is untrusted: a packet that is not exactly the one that was
due ends the session. How a session ended is read from the kernel, never asked of the guest.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar import channel
from belljar.aio import wait_until_done
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.ready_guests import INTERPRETER_BYTES
from belljar.backends.local.pool.setns_gate import has_ended
from belljar.backends.local.pool.zygotes import SESSION
from belljar.backends.local.run.run import in_memfd
from belljar.backends.local.session import files
from belljar.backends.local.session.between_cells import Background, Idleness
from belljar.backends.local.session.branch import Branch, Branching, check_quiet, copy_session
from belljar.backends.local.session.cell_run import CellRun, End
from belljar.backends.local.session.files import SessionFiles
from belljar.backends.local.session.opening import (
    FIRST_WORD_SECONDS,
    READY_SECONDS,
    Opening,
    describe_end,
    describe_silence,
)
from belljar.backends.local.session.process import FirstProcess, JailedProcess, SessionProcess
from belljar.contract.backend import Watcher
from belljar.contract.errors import (
    CannotBranch,
    JailSetupFailed,
    NotOffered,
    SandboxFault,
    SessionEnded,
    ZygoteDied,
)
from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.environments import Environment
from belljar.settings import RequestSettings

if TYPE_CHECKING:
    from belljar.backends.local.features.network import NetworkAccess
    from belljar.backends.local.features.tools import SessionTools

_SILENCE_SECONDS = 10.0
_INLINE_BYTES = 64 * 1024
_FORK_CPU_SECONDS = 0.25  # of a branch that we order: more than that is the program's own doing


class LocalSession(SessionFiles):
    """An interpreter that stays. All methods run on the loop's thread; one cell at a time."""

    def __init__(self, process: SessionProcess, limits: Limits, bounds: RequestSettings) -> None:
        super().__init__(bounds)
        self.cgroup = process.cgroup
        self._process = process
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._opening = Opening(process.first_descriptors)
        self._directories: list[int] = []  # work directory, /tmp, /dev/shm
        self._pidfd = -1
        self._cell_run: CellRun | None = None
        self._branching = Branching(self.send, self.end)
        self._writing = asyncio.Lock()  # held while a process of ours is in its cgroup
        self._cells = 0
        self._reason: str | None = None
        self._status: asyncio.Future[int | None] = self._loop.create_future()
        self._buried: asyncio.Task[None] | None = None
        self._on_end: list[Callable[[], None]] = []
        self.background = Background(limits.output_bytes)
        self._idleness = Idleness(process.cgroup, limits.cpu_seconds, lambda: self.end("timeout"))
        self.tools: SessionTools | None = None
        self.network: NetworkAccess | None = None
        self._interpreter: Mapping[str, Any] | None = None  # of a language that is not Python
        process.ended = self._on_process_ended
        process.memory_event = self._on_memory_event

    # ---- opening

    async def start(self, order: SessionOrder, interpreter: Mapping[str, Any] | None = None) -> None:
        """Wait for its first message, send it the caller's files, and wait until it is ready.

        `interpreter` is that of another language. On any failure nothing is left.

        Raises:
            ZygoteDied: the guest is gone; another may be tried.
            JailSetupFailed: the session could not be made.
            InvalidExecution: it cannot be opened with this order.
        """
        self._interpreter = interpreter
        try:
            if self.cgroup is not None:
                self.cgroup.limit(self._limits.memory_bytes + INTERPRETER_BYTES[SESSION], self._limits.processes)
                self.cgroup.begin()
            self._loop.add_reader(self._process.channel, self._on_message)
            async with asyncio.timeout(FIRST_WORD_SECONDS):
                await self._opening.first_word
            self._process.check_directories(self._directories)
            self._send_order(order)
            async with asyncio.timeout(READY_SECONDS):
                await self._opening.ready
            if self._reason is not None:  # it has ended since
                raise describe_end(self._reason)
        except BaseException as error:
            self.end("lost")
            await self._wait_until_buried()
            if isinstance(error, TimeoutError):
                is_ours = not self._opening.first_word.done() or not (self.tools or self._interpreter)
                raise describe_silence(is_ours) from error
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            if isinstance(error, OSError):
                raise JailSetupFailed("cgroup", str(error)) from error
            if isinstance(error, channel.ChannelClosed):
                raise ZygoteDied("the guest was gone before its session began") from error
            raise
        if self.tools is not None:
            self.tools.sent()
        self.background.open(self._process.stdout, self._process.stderr)
        self._idleness.begin()

    def _send_order(self, order: SessionOrder) -> None:
        extras: Sequence[GuestFeature] = () if self.tools is None else (self.tools.feature,)
        message = {
            "files": [(file.path, len(file.content)) for file in order.files],
            "env": dict(order.env),
            "extras": [(extra.name, extra.argument, len(extra.descriptors)) for extra in extras],
            "foreign": self._interpreter,
        }
        packet = channel.build(message, b"".join(file.content for file in order.files))
        sent = [descriptor for extra in extras for descriptor in extra.descriptors]
        if len(packet) <= _INLINE_BYTES:
            self.send(packet, sent)
            return
        memfd = in_memfd(packet)
        try:
            self.send(channel.build({"in_memfd": True}), [memfd, *sent])
        finally:
            os.close(memfd)

    def send(self, packet: bytes, descriptors: list[int]) -> None:
        """Hand a packet to the guest; the caller keeps its copies of the descriptors."""
        channel.send_packet(self._process.channel, packet, descriptors)

    # ---- what the guest sends

    def _on_message(self) -> None:
        try:
            message, blob, received = channel.receive(self._process.channel, self._opening.descriptors_max)
        except BlockingIOError:
            return
        except channel.ChannelClosed as error:
            if isinstance(error, channel.DescriptorsLost) and not self._opening.first_word.done():
                self._opening.first_word.set_exception(descriptors.refusal())
            self._on_broken_channel()
            return
        if not self._opening.first_word.done():
            if self._opening.receive_first(message, received):
                self._directories, self._pidfd = received[:3], received[3] if len(received) > 3 else -1
        elif self.cgroup is not None and self.cgroup.oom_kills() > 0:
            self.end("memory")  # of a child: the cell itself may not even have noticed
        elif not self._opening.ready.done():
            if not self._opening.receive_second(message, blob):
                self.end("crash")
        elif self._cell_run is not None and message.get("ended") == self._cell_run.number and "error" in message:
            self._cell_run.answer(message)
        elif message or not self._branching.answer(blob):
            self.end("crash")  # nothing else was due: the program itself sent it

    def _on_broken_channel(self) -> None:
        """Its end was closed, most often because its process ends now; or the program sent something malformed."""
        self._loop.remove_reader(self._process.channel)
        if not self._opening.first_word.done():
            self.end("lost")
        waiting = select.poll()
        waiting.register(self._process.channel, select.POLLRDHUP)  # an empty packet looks like an end, too
        if not waiting.poll(0):
            self.end("crash")
        elif self._cell_run is None:  # a cell that runs has its own clock
            self._loop.call_later(_SILENCE_SECONDS, self._end_unheard)

    def _end_unheard(self) -> None:
        """End a session that does not answer and whose wait status is not known yet."""
        self.end("lost" if self._process.was_lost() else "crash")

    # ---- cells

    async def run(self, cell: Execution, watcher: Watcher | None = None) -> Evidence:
        """Run one cell to its end. Cancelling interrupts it, and ends the session if it will not be interrupted."""
        self._check_alive()
        self._idleness.pause()
        if self.ended is not None:
            await self._wait_until_buried()
            raise self._ended_error()
        self._cells += 1
        self._cell_run = CellRun(self, self._cells, cell, watcher, self._bounds)
        if self.tools is not None:
            self._cell_run.feature = self.tools.unsent
            self.tools.begin(watcher)
        try:
            try:
                self._cell_run.start()
                if self.tools is not None:
                    self.tools.sent()
            except ZygoteDied:
                self._end_unheard()
                await self._wait_until_buried()
                raise self._ended_error() from None
            evidence = await self._cell_run.finish()
            if self.network is not None:
                evidence = await self.network.complete(evidence)
            return evidence if self.tools is None else self.tools.complete(evidence)
        finally:
            self._cell_run = None
            if self.tools is not None:
                self.tools.end()
            if self._buried is not None:
                await self._wait_until_buried()
            else:
                self.background.resume()
                self._idleness.begin()

    def interrupt(self) -> None:
        """KeyboardInterrupt in the running cell; nothing when there is none."""
        if self._cell_run is not None:
            self.signal_interrupt()

    def signal_interrupt(self) -> None:
        """SIGINT to the guest's own process."""
        self._process.interrupt(self._pidfd)

    def pids(self) -> list[int]:
        """The processes in it; empty without a cgroup."""
        return [] if self.cgroup is None else self.cgroup.processes()

    async def branch(self, reseed: bool = True) -> LiveSession:
        """An independent copy of the live state.

        Raises:
            CannotBranch: it cannot be copied now; the message says why.
        """
        with descriptors.named():
            return await self._branch(reseed)

    async def _branch(self, reseed: bool) -> LiveSession:
        self._check_alive()
        if not isinstance(self._process, JailedProcess):
            raise CannotBranch("sessions under a kernel of their own cannot be branched")
        if self._interpreter is not None:
            raise CannotBranch("only Python sessions can be branched: another interpreter cannot fork itself")
        if self._cell_run is not None:
            raise CannotBranch("a cell is running; branch when it has ended")
        branching = self._branching
        branching.check_generation()
        async with self._writing:
            if not branching.under_way:
                check_quiet(self.cgroup)
        branching.under_way += 1
        began = 0.0 if self.cgroup is None else self.cgroup.cpu_seconds()

        async def order(descriptors: list[int]) -> None:
            self._check_alive()
            await branching.order(reseed, descriptors)

        try:
            async with branching.births:
                self._check_alive()
                grown = await copy_session(self._process, self._directories, self._limits, order, branching.forking)
        finally:
            branching.under_way -= 1
            if self._reason is None and self.cgroup is not None:
                self._idleness.forgive(min(self.cgroup.cpu_seconds() - began, _FORK_CPU_SECONDS))
        twin = LocalSession(grown.process, self._limits, self._bounds)
        twin._branching.generation = branching.generation + 1
        twin._begin_as_copy(grown, self._cells)
        try:
            twin._process.check_directories(twin._directories)
            if self.tools is not None:
                twin.tools = self.tools.branch()
            if self.network is not None:
                twin.network = await self.network.branch(grown.pidfd)
        except BaseException:
            await twin.close()
            raise
        return twin

    def _begin_as_copy(self, grown: Branch, cells: int) -> None:
        self._directories, self._pidfd = grown.directories, grown.pidfd
        self._cells = cells
        self._opening.skip()
        self._loop.add_reader(self._process.channel, self._on_message)
        self.background.open(self._process.stdout, self._process.stderr)
        self._idleness.begin()
        if has_ended(grown.pidfd):
            self._on_process_ended(None)

    def memory_bytes(self) -> int:
        """The memory that it uses now."""
        return 0 if self.cgroup is None or self._reason is not None else self.cgroup.memory_bytes()

    # ---- the end

    @property
    def ended(self) -> str | None:
        """Why it has ended; None while it lives."""
        return self._reason

    def on_end(self, call: Callable[[], None]) -> None:
        """Call `call()` once it has ended, whatever the reason."""
        if self._buried is not None and self._buried.done():
            call()
        else:
            self._on_end.append(call)

    async def close(self) -> None:
        """End it and everything it started; nothing is left when this returns."""
        self.end("closed")
        await self._wait_until_buried()

    def end(self, reason: str) -> None:
        """Kill every process in it. The first reason given is the one remembered."""
        if self._reason is None:
            self._reason = reason
            self._opening.fail(reason)
            self._idleness.close()
            self._process.kill()
            self._buried = self._loop.create_task(self._bury())

    async def _write(self, path: str, content: bytes) -> None:
        """By a process in the session's cgroup, where there is one: the file counts toward its memory."""
        if self.cgroup is None:
            await super()._write(path, content)
            return
        assert isinstance(self._process, JailedProcess)
        async with self._writing:
            self._check_alive()
            try:
                with descriptors.named():
                    await files.put(self._process, self.cgroup, self._directories[0], path, content)
            except SandboxFault:
                self._on_memory_event()  # the program may have used up the room
                self._check_alive()
                raise

    async def _on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        self._check_alive()
        try:
            return await self._process.on_work_dir(self._directories[0], work, *args)
        except ZygoteDied:
            self._check_alive()  # it has ended meanwhile
            raise

    def _check_alive(self) -> None:
        if self._reason is not None:
            raise self._ended_error()

    def _ended_error(self) -> SessionEnded:
        return SessionEnded(f"the session has ended: {self._reason}", reason=self._reason)

    def _on_process_ended(self, status: int | None) -> None:
        if not self._status.done():
            self._status.set_result(status)
        self.end(self._judge(status))

    def _judge(self, status: int | None) -> str:
        if self._process.oom_kills() > 0:
            return "memory"
        if self._process.was_lost():
            return "lost"
        if status is None:
            # An older kernel does not report the status of a branch.
            return "lost" if isinstance(self._process, FirstProcess) else "exit"
        return "exit" if os.WIFEXITED(status) else "crash"

    def _on_memory_event(self) -> None:
        """End all processes: version 1 cgroups kill one of several and let the others go on."""
        if self._process.oom_kills() > 0:
            self.end("memory")

    async def _wait_until_buried(self) -> None:
        """Wait for the end of `_bury`, even if cancelled meanwhile."""
        assert self._buried is not None
        cancelled = await wait_until_done(self._buried)
        if cancelled is not None:
            raise cancelled

    async def _bury(self) -> None:
        """Wait until every process is dead, end the cell that ran, and give everything back."""
        await self._process.gone()
        await asyncio.wait([self._status], timeout=_SILENCE_SECONDS)
        status = self._status.result() if self._status.done() and self._reason != "lost" else None
        if self.cgroup is not None and self._reason in ("crash", "lost") and self.cgroup.oom_kills() > 0:
            self._reason = "memory"
        assert self._reason is not None
        if self._cell_run is not None:
            self._cell_run.answer(self._describe_end(self._reason, status))
        self._loop.remove_reader(self._process.channel)
        self.background.close()
        async with self._writing:
            pass  # no process of ours is in its cgroup any more
        for descriptor in (*self._directories, *([self._pidfd] if self._pidfd >= 0 else ())):
            os.close(descriptor)
        self._directories.clear()  # in place: a branch that waits for its namespaces holds this list, too
        self._pidfd = -1
        self._branching.abandon(f"the session has ended: {self._reason}")
        self._opening.forget()
        if self.tools is not None:
            self.tools.close()
        if self.network is not None:
            await self.network.close()
        await self._process.release()
        for call in self._on_end:
            call()

    def _describe_end(self, reason: str, status: int | None) -> End:
        oom_kills = self._process.oom_kills() if reason == "memory" else 0
        if self.cgroup is None:
            return End(reason, status, oom_kills, 0.0, 0)
        return End(reason, status, oom_kills, self.cgroup.cpu_seconds(), self.cgroup.memory_peak_bytes())


def check_ipython(environment: Environment) -> None:
    """Raises NotOffered: the environment has no IPython, which runs the cells of sessions."""
    if not any(name.lower() == "ipython" for name, _ in environment.packages):
        raise NotOffered(
            f"environment {environment.name!r} has no IPython, which sessions need; use another", field="environment"
        )
