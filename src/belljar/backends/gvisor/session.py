"""A session behind another kernel: a session as any, but that its guest is at the other end of lines.

What cannot be reached by a line is asked of the steward: files of the work directory, an interrupt, the end. There is
no cgroup and no pidfd, so nothing counts a cell's memory and processor, and it cannot be branched.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from belljar import channel
from belljar.backends.gvisor.relay import DescriptorRelay, Send
from belljar.backends.local.session.cell_run import End
from belljar.backends.local.session.process import SessionFamily, SessionProcess
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import CannotBranch, SandboxFault, UnsafePath
from belljar.contract.files import check_relative_path
from belljar.contract.sessions import LiveSession
from belljar.jail import live_files, workdir

_SILENCE_SECONDS = 30.0
_WORKS: Mapping[Callable[..., Any], str] = {
    live_files.entries: "list",
    live_files.read: "read",
    live_files.write: "write",
    live_files.delete: "delete",
}
_REASON_CHARACTERS = 500
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RelayedProcess(SessionProcess):
    """The guest, and all lines to it."""

    def __init__(self, number: int, send: Send, pool: Any, forget: Callable[[], None]) -> None:
        self.number = number
        self.is_out_of_memory = False
        self.family = cast(SessionFamily, SimpleNamespace(pool=pool))  # the rest of a family lives in a cell
        self.cgroup = None
        self.ended = lambda status: None
        self.memory_event = lambda: None
        self._send = send
        self._forget = forget
        self._has_gone = asyncio.Event()
        self._questions = itertools.count(1)
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self.relay = DescriptorRelay(number, send)
        self.channel, theirs = channel.pair()
        self.channel.setblocking(False)
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        kinds, _ = self.relay.lend([theirs.fileno(), stdout, stderr])
        theirs.close()
        os.close(stdout)
        os.close(stderr)
        self.numbers = dict(zip(("channel", "stdout", "stderr"), (each["line"] for each in kinds), strict=True))

    def receive(self, message: dict[str, Any], blob: bytes) -> None:
        """One frame of the steward's."""
        if "line" in message:
            self.relay.receive(message, blob)
        elif "asked" in message:
            answer = self._asked.pop(message["asked"], None)
            if answer is not None and not answer.done():
                answer.set_result((message, blob))
        elif message.keys() & {"ended", "failed", "lost"}:
            ended = message.get("ended") or {}
            self.is_out_of_memory = bool(ended.get("out_of_memory"))
            status = ended.get("status")
            self._end(status if _is_wait_status(status) else None)

    def _end(self, status: int | None) -> None:
        if not self._has_gone.is_set():
            self._has_gone.set()
            for answer in list(self._asked.values()):
                answer.cancel()
            self.ended(status)

    async def ask(self, work: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Have something done to its files."""
        number = next(self._questions)
        answer: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send({"do": "file", "run": self.number, "asked": number, **work}, blob)
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                return await answer
        finally:
            self._asked.pop(number, None)

    def was_taken_away(self) -> bool:
        """It has no cell; that its container has gone is told by its pool."""
        return False

    def interrupt(self) -> None:
        """SIGINT to its process."""
        self._send({"do": "interrupt", "run": self.number}, b"")

    def kill(self) -> None:
        """End everyone in it."""
        if not self._has_gone.is_set():
            self._send({"do": "kill", "run": self.number}, b"")

    async def gone(self) -> None:
        """Wait until everyone who was killed is dead; a steward that does not see to it goes with its container."""
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                await self._has_gone.wait()
        except TimeoutError:
            self.family.pool.unstick()  # type: ignore[call-arg]
            self._end(None)

    async def release(self) -> None:
        """Everyone is dead and everything was read."""
        self.relay.close()
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)
        self._send({"do": "done", "run": self.number}, b"")
        self._forget()


def _is_wait_status(status: object) -> bool:
    """Whether it is one of a process that has ended."""
    return isinstance(status, int) and 0 <= status < 1 << 16 and (os.WIFEXITED(status) or os.WIFSIGNALED(status))


class GvisorSession(LocalSession):
    """An interpreter that stays, in a container with a kernel of its own."""

    _process: RelayedProcess

    def _receive_first_message(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if len(descriptors) == 3:  # stand for its directories; there is no pidfd
            descriptors = [*descriptors, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        super()._receive_first_message(message, descriptors)

    def _check_directories(self) -> None:
        """They stay with the steward: what we hold only stands for them."""

    def _judge(self, status: int | None) -> str:
        return "memory" if self._process.is_out_of_memory else super()._judge(status)

    def _describe_end(self, reason: str, status: int | None) -> End:
        return super()._describe_end(reason, status)._replace(oom_kills=int(reason == "memory"))

    def signal_interrupt(self) -> None:
        """SIGINT to the guest's own process."""
        self._process.interrupt()

    async def branch(self, reseed: bool = True) -> LiveSession:
        """Not here: a branch needs a place made for it, with namespaces that older gVisors do not have."""
        self._check_alive()
        raise CannotBranch("sessions under a kernel of their own cannot be branched")

    async def _on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        self._check_alive()
        if work is workdir.collect:
            return await self._collect(*args)
        order: dict[str, Any] = {"work": _WORKS[work]}
        blob = b""
        if args:
            order["path"] = args[0]
        if work is live_files.read:
            order["bytes_max"] = args[1]
        elif work is live_files.write:
            (blob,) = args[1]
        answer, content = await self._ask(order, blob)
        if work is live_files.read:
            if len(content) > args[1]:
                raise workdir.TooMuch(f"{args[0]}: more than the {args[1]:,} bytes that are returned")
            return content
        return _entries(answer)

    async def _ask(self, order: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        try:
            answer, content = await self._process.ask(order, blob)
        except (asyncio.CancelledError, TimeoutError):
            self._check_alive()  # it has ended while we waited
            raise
        if "error" in answer:
            reason = str(answer.get("reason"))[:_REASON_CHARACTERS]
            if order["work"] == "list":
                raise SandboxFault(f"the container does not list its files: {reason}")
            is_full = order["work"] == "write" and answer["error"] in _NO_ROOM
            raise live_files.NoRoom(reason) if is_full else live_files.NotThere(reason)
        return answer, content

    async def _collect(self, is_wanted: Callable[[str], bool], count: int, bytes_max: int) -> list[tuple[str, bytes]]:
        answer, _ = await self._ask({"work": "list"})
        listed = [entry.path for entry in _entries(answer)]
        paths, trouble = await asyncio.to_thread(workdir.pick, listed, is_wanted)
        if len(paths) > count:
            trouble = trouble or workdir.TooMuch(f"{len(paths)} files match, at most {count} can be returned")
        found, left = [], bytes_max
        for path in paths[:count]:
            try:
                _, content = await self._ask({"work": "read", "path": path, "bytes_max": left})
            except live_files.NotThere:
                continue  # gone meanwhile
            if len(content) > left:
                trouble = trouble or workdir.TooMuch("more bytes than can be returned")
                continue
            left -= len(content)
            found.append((path, content))
        if trouble is not None:
            trouble.found = found
            raise trouble
        return found


def _entries(answer: Mapping[str, Any]) -> list[live_files.Entry]:
    """What the steward lists. It is no more to be trusted than the container it is in.

    Raises:
        SandboxFault: it cannot be read.
    """
    try:
        found = [live_files.Entry(str(path), int(size), float(at)) for path, size, at in answer.get("found") or ()]
        for entry in found:
            check_relative_path(entry.path)
            if entry.size_bytes < 0 or not math.isfinite(entry.modified_at):
                raise ValueError(entry.path)
    except (ValueError, TypeError, OverflowError, UnsafePath) as error:
        raise SandboxFault("the container lists its files in a way that cannot be read") from error
    return found
