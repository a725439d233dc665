"""The host's end of the socket to a warden: the process that makes the zygotes and jails of one pool, and reaps them.

Everything here runs on the event loop's thread and never blocks. Only pids, wait statuses and descriptors are taken
from the other side; no program ever had them in its hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from belljar import channel
from belljar.aio import LogPipe, wait_or_kill
from belljar.jail import mounts

_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); from belljar.inside.warden.warden import main; main(int(sys.argv[1]))"
)
_SOURCES = str(Path(__file__).resolve().parents[4])
_ANSWER_SECONDS = 30.0  # for the warden to make a jail, a listener or a process
_LEAVE_SECONDS = 5.0
_EARLY_SECONDS = 2.0  # how far two sockets may disagree about the order of things; pids come round much later

Reaped = Callable[[int, float], None]  # wait status, CPU seconds


class StartFailed(Exception):
    """A warden, zygote or jail did not start; the message says why."""


class OutOfDescriptors(StartFailed):
    """This process or the warden has no file descriptors left for a request; everything else goes on."""


#: Errors of the kernel when a process or the machine has no descriptors left, or too many are in flight.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)


class WardenProcess(Protocol):
    """The process that becomes a warden: how it is reached, and how it ends."""

    def connect(self, log: int) -> socket.socket:
        """Have the process write its log to `log`; return the socket to it, which the caller owns.

        Raises:
            StartFailed: it has ended. OSError: it cannot be started.
        """

    def kill(self) -> None:
        """Kill it, and with it everything in its pid namespace."""

    async def left(self) -> None:
        """Wait until it and everything in its pid namespace are gone; kill it if it does not end by itself."""


class Keeper:
    """A process executed on this machine, which dies with the warden that it starts: a `WardenProcess`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes]

    def connect(self, log: int) -> socket.socket:
        """Execute it with a clean environment."""
        ours, theirs = channel.pair()
        command = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), _SOURCES]
        with theirs:
            try:
                # From the loop's thread: the keeper dies with the thread that started it.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"LANG": "C.UTF-8"},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    cwd="/",
                )
            except BaseException:
                ours.close()
                raise
        return ours

    def kill(self) -> None:
        """Kill it; the kernel then kills the warden."""
        self._process.kill()

    async def left(self) -> None:
        """Its exit proves that the warden and all its processes are gone."""
        await wait_or_kill(self._process, _LEAVE_SECONDS)


class WardenHandle:
    """A running warden: makes zygotes and jails, and reports which of its children have ended."""

    def __init__(self, process: WardenProcess, on_lost: Callable[[], None]) -> None:
        self.log = LogPipe()
        self.is_lost = False
        self._process = process
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._is_connected = False
        self._socket: socket.socket  # once connected
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_ask = 0
        self._watched: dict[int, Reaped] = {}
        self._early: dict[int, tuple[float, int, float]] = {}  # ended before `watch` was called, and when
        self._ready: asyncio.Future[None] = self._loop.create_future()

    async def start(self, orders: Mapping[str, Any]) -> None:
        """Send `orders` to the process that becomes the warden, and wait until its namespaces are built.

        Raises:
            StartFailed: that failed; the message says at which call.
        """
        self._socket = self._process.connect(self.log.write)
        self._is_connected = True
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_readable)
        try:
            channel.send(self._socket, dict(orders))
        except channel.ChannelClosed as error:
            raise StartFailed("the warden has ended") from error
        await self._ready

    async def start_zygote(self, python: str, environ: Mapping[str, str], control: int) -> tuple[int, int]:
        """Start a zygote with `control` as its socket; return its pid, and a pidfd that the caller owns."""
        message = {"python": python, "environ": dict(environ)}
        pid, pidfd = await self._await_answer(self._ask(message, [control, self.log.write]))
        return pid, pidfd

    async def find_missing(self, pids: Sequence[int]) -> list[int]:
        """Return those of `pids` that are not, or no longer, the warden's children."""
        return list(await self._ask({"orphans": list(pids)}, []))

    async def make_jail(self, disk_bytes: int, has_own_devices: bool = False) -> tuple[int, list[int]]:
        """Make an empty jail; return the pid of the process that holds it, and descriptors that the caller owns.

        First a pidfd of that process, then what `Warden.make_jail` says of `disk_bytes`.

        Raises:
            StartFailed: the jail was not made.
        """
        devices = [mounts.make_devices()] if has_own_devices else []
        try:
            asked = self._ask({"disk_bytes": disk_bytes}, devices)
        finally:
            for each in devices:  # the message holds a copy
                os.close(each)
        pid, *descriptors = await self._await_answer(asked, _ANSWER_SECONDS)
        return pid, descriptors

    def renew(self, jail_init: int, disk_bytes: int) -> asyncio.Future[list[int]]:
        """Remount the directories of an empty jail: their descriptors as `Warden.open_dirs` returns them."""
        return self._ask({"renew": True, "disk_bytes": disk_bytes}, [jail_init])

    async def listen(self, place: int, port: int) -> tuple[int, int]:
        """Listen on the loopback of a network namespace, or of that of a process; port 0 stands for any.

        Returns the port, and the listener, which the caller owns.

        Raises:
            StartFailed: no listener could be made.
        """
        asked = self._ask({"listen": port}, [place])
        port, listener = await self._await_answer(asked, _ANSWER_SECONDS, is_process=False)
        return port, listener

    async def make_branch_namespaces(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start the process that makes those of a branch (`inside/warden/branch_namespaces.py`): pid and pidfd."""
        pid, pidfd = await self._await_answer(self._ask({"graft": dict(order)}, descriptors))
        return pid, pidfd

    async def write_file(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start the process that writes a file into a session (`inside/warden/file_writer.py`): pid and pidfd.

        Raises:
            StartFailed: it was not started.
        """
        pid, pidfd = await self._await_answer(self._ask({"deposit": dict(order)}, descriptors), _ANSWER_SECONDS)
        return pid, pidfd

    def watch(self, pid: int, ended: Reaped) -> None:
        """Call `ended` once the warden has reaped `pid`, at once if it has already."""
        at, status, cpu_seconds = self._early.pop(pid, (0.0, 0, 0.0))
        if at > self._loop.time() - _EARLY_SECONDS:  # else it was another process with the same pid
            ended(status, cpu_seconds)
        else:
            self._watched[pid] = ended

    def unwatch(self, pid: int) -> None:
        """Stop watching `pid`."""
        self._watched.pop(pid, None)
        self._early.pop(pid, None)

    def _ask(self, message: dict[str, Any], descriptors: Sequence[int]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.is_lost:
            answer.set_exception(StartFailed("the warden has ended"))
            return answer
        self._next_ask += 1
        self._asked[self._next_ask] = answer
        try:
            channel.send(self._socket, {**message, "ask": self._next_ask}, descriptors=descriptors)
        except (channel.ChannelClosed, OSError) as error:
            del self._asked[self._next_ask]
            is_short = isinstance(error, OSError) and error.errno in SHORTAGES
            kind = OutOfDescriptors if is_short else StartFailed
            answer.set_exception(kind(f"the warden cannot be asked: {error}"))
        return answer

    async def _await_answer(
        self, asked: asyncio.Future[Any], seconds: float | None = None, *, is_process: bool = True
    ) -> Any:
        """Wait for an answer. A caller that is cancelled just as it comes closes what came with it.

        A warden that does not answer within `seconds` is ended.
        """
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await asked
                except asyncio.CancelledError:
                    if not asked.cancelled() and asked.exception() is None:
                        discard(asked.result()[1:], is_process)
                    raise
        except TimeoutError as error:
            self.kill()
            raise StartFailed("the warden does not answer") from error

    def _on_readable(self) -> None:
        while True:
            try:
                message, _, descriptors = channel.receive(self._socket, channel.DESCRIPTORS_MAX)
            except BlockingIOError:
                return
            except channel.DescriptorsLost as short:
                self._give_up(short.message)
            except channel.ChannelClosed:
                self._lose()
                return
            else:
                self._receive(message, descriptors)

    def _give_up(self, message: dict[str, Any]) -> None:
        """Fail the request whose answer carried descriptors that this process has no room for; end what was made."""
        if "pid" in message:
            with contextlib.suppress(channel.ChannelClosed, OSError):
                channel.send(self._socket, {"end": message["pid"]})
        answer = self._asked.pop(message["ask"])
        if not answer.cancelled():
            answer.set_exception(OutOfDescriptors("this process has no file descriptors left"))

    def _receive(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "reaped" in message:
            seen = message["status"], message["cpu_seconds"]
            ended = self._watched.pop(message["reaped"], None)
            if ended is not None:
                ended(*seen)
            else:
                now = self._loop.time()
                self._early = {pid: each for pid, each in self._early.items() if each[0] > now - _EARLY_SECONDS}
                self._early[message["reaped"]] = (now, *seen)
        elif "ask" in message:
            answer = self._asked.pop(message["ask"])
            if answer.cancelled():
                discard(descriptors, "pid" in message)
            elif "failed" in message:
                kind = OutOfDescriptors if message["errno"] in SHORTAGES else StartFailed
                answer.set_exception(kind(message["failed"]))
            elif "missing" in message:
                answer.set_result(message["missing"])
            elif "port" in message:
                answer.set_result((message["port"], descriptors[0]))
            elif "renewed" in message:
                answer.set_result(descriptors)
            else:
                answer.set_result((message["pid"], *descriptors))
        elif not self._ready.done():
            if "failed" in message:
                self._ready.set_exception(StartFailed(message["failed"]))
            else:
                self._ready.set_result(None)

    def _lose(self) -> None:
        self.is_lost = True
        self._loop.remove_reader(self._socket)
        lost = StartFailed(f"the warden has ended: {self.log.tail.decode('utf-8', 'replace').strip()}")
        if not self._ready.done():
            self._ready.set_exception(lost)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(lost)
        self._asked.clear()
        self._on_lost()

    def kill(self) -> None:
        """End the warden at once. `on_lost` is called as for any other loss."""
        self._process.kill()

    async def close(self) -> None:
        """End the warden, and with it everything in its pid namespace; wait until it is gone."""
        if self._is_connected:
            self._loop.remove_reader(self._socket)
            self._socket.close()  # the warden exits then
            await self._process.left()
        self.log.close()
        if not self._ready.done():
            self._ready.cancel()


def discard(descriptors: Sequence[int], is_process: bool) -> None:
    """Close descriptors that came too late; if the first of them is a pidfd, end its process."""
    if is_process:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)
    for descriptor in descriptors:
        os.close(descriptor)
