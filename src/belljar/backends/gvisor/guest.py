"""A guest inside gVisor as the host holds it: a local run or session works with it over relayed descriptors.

What cannot be relayed is ordered from the agent in the container: the end of the guest, an interrupt, work on its
files. The agent also counts memory and CPU. It is trusted no more than its container, so every field is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from belljar import channel
from belljar.backends.gvisor.relay import DescriptorRelay, Send
from belljar.backends.local.run.displays import clean
from belljar.backends.local.run.run import Run
from belljar.backends.local.session.process import SessionProcess
from belljar.contract.errors import SandboxFault, UnsafePath, ZygoteDied
from belljar.contract.execution import Evidence
from belljar.contract.files import check_relative_path
from belljar.jail import live_files, workdir

_SILENCE_SECONDS = 30.0
_OUTPUT_SECONDS = 1.0  # for the last output to be read, which makes room for the rest
_REASON_CHARACTERS = 500
_ERRORS: dict[object, type[Exception]] = {
    each.__name__: each for each in (live_files.NotThere, live_files.NoRoom, workdir.TooMuch)
}


class RelayedMeter:
    """What the agent has counted by the end of a run. The agent enforces the limits, which it got with the guest."""

    def __init__(self) -> None:
        self._usage = 0.0, 0, 0
        self._is_final = False

    def set(self, cpu_seconds: float, memory_peak_bytes: int, oom_kills: int) -> None:
        """Everyone in the jail is dead, and this is what they have used."""
        self._usage = cpu_seconds, memory_peak_bytes, oom_kills
        self._is_final = True

    def limit(self, memory_bytes: int, processes: int) -> None:
        """The agent has its own limits."""

    def begin(self) -> None:
        """Each guest is counted once."""

    def usage(self) -> tuple[float, int, int]:
        """CPU seconds, peak memory in bytes, and how often memory ran out; all 0 until the end."""
        return self._usage

    def cpu_seconds(self) -> float:
        return self._usage[0]

    def memory_peak_bytes(self) -> int:
        return self._usage[1]

    def oom_kills(self) -> int:
        return self._usage[2]

    def is_empty(self) -> bool:
        return self._is_final


class RelayedJail:
    """The namespaces of one guest inside gVisor. They go with it, so the jail is its own slot."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.is_unread = self.is_vacated = False
        self.on_memory_event: Callable[[], None] | None = None
        self.cgroup = RelayedMeter()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kill = kill

    @property
    def jail_slot(self) -> RelayedJail:
        return self

    @property
    def is_gone(self) -> bool:
        return self.gone.done()

    def kill(self) -> None:
        """Have the agent kill every process in it; `gone` is done when they are dead."""
        if not self.is_gone:
            self._kill()

    def was_taken_away(self) -> bool:
        """Never: a guest that is lost is lost with its container, which its pool reports."""
        return False


class RelayedGuest:
    """A guest inside gVisor, with the host's ends of its relayed socket and pipes."""

    def __init__(self, number: int, kind: str, send: Send) -> None:
        """Raises OSError if no descriptors are left; nothing stays open."""
        self.number = number
        self.kind = kind
        self.ended: Callable[[int | None, float], None] | None = None
        self.jail = RelayedJail(lambda: self._order("kill"))
        self.relay = DescriptorRelay(number, send)
        self._send = send
        self._questions = itertools.count(1)
        self._answers: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._is_lost = False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self.channel, peer = channel.pair()
            theirs.callback(peer.close)
            ours.callback(self.channel.close)
            ours.callback(self.relay.close)
            self.channel.setblocking(False)
            self.stdout, stdout = _open_pipe(ours, theirs)
            self.stderr, stderr = _open_pipe(ours, theirs)
            kinds, _ = self.relay.describe([peer.fileno(), stdout, stderr])
            ours.pop_all()
        self.numbers = dict(zip(("channel", "stdout", "stderr"), (each["descriptor"] for each in kinds), strict=True))

    def _order(self, command: str) -> None:
        self._send({"do": command, "run": self.number}, b"")

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        self.relay.send(self.numbers["channel"], packet, descriptors)

    def interrupt(self) -> None:
        """Send SIGINT to its process."""
        self._order("interrupt")

    def receive(self, message: dict[str, Any], blob: bytes) -> None:
        """Take one frame of the agent.

        Raises:
            ValueError: the container breaks the protocol.
        """
        if "descriptor" in message:
            self.relay.receive(message, blob)
        elif "answers" in message:
            number = message["answers"]
            answer = self._answers.pop(number, None) if isinstance(number, int) else None
            if answer is not None and not answer.done():
                answer.set_result((message, blob))
        elif "ended" in message:
            self._end(*_check_end(message["ended"]))

    def lose(self) -> None:
        """The container is gone, and the guest with it."""
        self._is_lost = True
        self._end(None, 0.0, 0, False)
        self._fail_questions()

    def _end(self, status: int | None, cpu_seconds: float, memory_peak_bytes: int, is_out_of_memory: bool) -> None:
        if not self.jail.is_gone:
            self.jail.cgroup.set(cpu_seconds, memory_peak_bytes, int(is_out_of_memory))
            self.jail.gone.set_result(None)
            if self.ended is not None:
                self.ended(status, cpu_seconds)

    def close(self) -> None:
        """Close the host's ends, and have the agent do the same."""
        self._fail_questions()
        self.relay.close()
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)
        self._order("done")

    # ---- its files

    def _fail_questions(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ZygoteDied("the container is gone, and the files with it"))
                answer.exception()  # the caller may have been cancelled
        self._answers.clear()

    async def _ask(self, work: str, *args: Any, blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Have the agent call a function on the work directory, with the rights of the guest."""
        if self._is_lost:
            raise ZygoteDied("the container is gone, and the files with it")
        number = next(self._questions)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._send({"do": "file", "run": self.number, "question": number, "work": work, "args": args}, blob)
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                message, content = await answer
        except TimeoutError as error:
            raise ZygoteDied("the container does not return its files") from error
        finally:
            self._answers.pop(number, None)
        if "error" in message:
            reason = clean(message.get("reason"), _REASON_CHARACTERS)
            kind = message["error"]
            raise _ERRORS[kind](reason) if isinstance(kind, str) and kind in _ERRORS else SandboxFault(reason)
        return message, content

    async def on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call one of the functions of `workdir` and `live_files` on the work directory."""
        if work is workdir.collect:
            return await self._collect(*args)
        if work is live_files.write:
            path, chunks = args
            await self._ask(work.__name__, path, blob=b"".join(chunks))
            return None
        message, content = await self._ask(work.__name__, *args)
        if work is live_files.read:
            path, bytes_max = args
            if len(content) > bytes_max:
                raise SandboxFault("the container sends more of a file than was requested")
            return content
        return _check_entries(message.get("found")) if work is live_files.entries else None

    async def _collect(self, wanted: Callable[[str], bool], count_max: int, bytes_max: int) -> list[tuple[str, bytes]]:
        """As `workdir.collect`: globs are matched out here, since matching is for the caller to pay for."""
        message, _ = await self._ask("walk")
        paths = [path for path in _list(message.get("paths")) if isinstance(path, str) and _is_safe(path)]
        chosen, trouble = await asyncio.to_thread(workdir.choose, paths, wanted, count_max)
        trouble = trouble or _check_trouble(message)
        message, content = await self._ask("read_all", chosen, bytes_max)
        if len(content) > bytes_max:
            raise SandboxFault("the container sends more of its files than was requested")
        found, start = [], 0
        for size, path in zip(_list(message.get("sizes")), chosen, strict=False):
            if isinstance(size, int) and size >= 0:  # else it is not a regular file, or does not fit
                found.append((path, content[start : start + size]))
                start += size
        return workdir.whole(found, trouble or _check_trouble(message))


def _open_pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


class RelayedRun(Run):
    """One program in a guest inside gVisor."""

    silence_seconds = 40.0  # its zygote may have to import packages first, in the slower of two kernels
    guest: RelayedGuest

    def evidence(self, status: int | None, cpu_seconds: float, wall_seconds: float) -> Evidence:
        """Pass on the frames that came before the end and still wait for room in the pipes."""
        self.read_the_rest()
        while self.guest.relay.pass_on():
            self.read_the_rest()
        self.guest.relay.finish()
        return super().evidence(status, cpu_seconds, wall_seconds)


class _Pool(Protocol):
    is_lost: bool

    def unstick(self, guest: RelayedGuest) -> None: ...

    def release(self, guest: RelayedGuest) -> None: ...


class RelayedProcess(SessionProcess):
    """The process of a session in a guest inside gVisor.

    Neither cgroup nor pidfd reaches out of the container, so the memory and CPU of a cell are not counted, and the
    session cannot be branched.
    """

    first_descriptors = 3  # placeholders for its directories; not every such kernel has pidfds

    def __init__(self, pool: _Pool, guest: RelayedGuest) -> None:
        super().__init__()
        self.guest = guest
        self.cgroup = None
        self.channel, self.stdout, self.stderr = guest.channel, guest.stdout, guest.stderr
        self._pool = pool
        guest.ended = lambda status, _: self.ended(status)

    def check_directories(self, directories: list[int]) -> None:
        """The directories stay with the agent, which reads them with the rights of the guest."""

    def was_lost(self) -> bool:
        return self._pool.is_lost

    def oom_kills(self) -> int:
        return self.guest.jail.cgroup.oom_kills()

    async def on_work_dir(self, root: int, work: Callable[..., Any], *args: Any) -> Any:
        return await self.guest.on_work_dir(work, *args)

    def interrupt(self, pidfd: int) -> None:
        """Have the agent send it SIGINT."""
        self.guest.interrupt()

    def kill(self) -> None:
        self.guest.jail.kill()

    async def gone(self) -> None:
        """Wait until every process in it is dead, and for a moment until their output is in the pipes.

        An agent that does not report the end of a guest is ended with its container.
        """
        await asyncio.wait([self.guest.jail.gone], timeout=_SILENCE_SECONDS)
        if not self.guest.jail.is_gone:
            self._pool.unstick(self.guest)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_SECONDS):
                await self.guest.relay.passed_on.wait()

    async def release(self) -> None:
        self._pool.release(self.guest)


def _check_end(ended: object) -> tuple[int | None, float, int, bool]:
    """Wait status (None: unknown), CPU seconds, peak memory in bytes, whether memory ran out."""
    if not isinstance(ended, dict):
        raise ValueError("how a guest ended cannot be read")
    status, microseconds, peak = ended.get("status"), ended.get("cpu_microseconds"), ended.get("peak_bytes")
    is_status = isinstance(status, int) and 0 <= status < 1 << 16 and (os.WIFEXITED(status) or os.WIFSIGNALED(status))
    counts = [each if isinstance(each, int) and 0 <= each < 1 << 62 else 0 for each in (microseconds, peak)]
    return status if is_status else None, counts[0] / 1e6, counts[1], bool(ended.get("out_of_memory"))


def _check_trouble(message: dict[str, Any]) -> workdir.TooMuch | None:
    reason = clean(message.get("trouble"), _REASON_CHARACTERS)
    return workdir.TooMuch(reason) if reason else None


def _check_entries(found: object) -> list[live_files.Entry]:
    """The list of files that the agent has sent, without names that no request could have.

    Raises:
        SandboxFault: it cannot be read.
    """
    try:
        entries = [live_files.Entry(str(path), int(size), float(at)) for path, size, at in _list(found)]
    except (ValueError, TypeError, OverflowError) as error:
        raise SandboxFault("the container lists its files in a way that cannot be read") from error
    if any(entry.size_bytes < 0 or not math.isfinite(entry.modified_at) for entry in entries):
        raise SandboxFault("the container lists a file whose size or time is impossible")
    return [entry for entry in entries if _is_safe(entry.path)]


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _is_safe(path: str) -> bool:
    try:
        return check_relative_path(path) == path
    except UnsafePath:
        return False
