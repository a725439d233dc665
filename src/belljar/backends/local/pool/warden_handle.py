"""The host's ends of the sockets to wardens and zygotes: requests go out, births and deaths come back.

Everything here runs on the event loop's thread and never blocks. Only pids, wait statuses and descriptors are taken
from the other side; none of them was ever in a program's hands.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar import channel
from belljar.aio import LogPipe, wait_until_gone
from belljar.backends.local.pool.setns_gate import Gate
from belljar.inside.zygote import protocol
from belljar.jail import mounts, policy

_log = logging.getLogger("belljar.zygote")
_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); from belljar.inside.warden.warden import main; main(int(sys.argv[1]))"
)
_SOURCES = str(Path(__file__).resolve().parents[4])
_NEWS_BYTES = 4096
_BIRTHS_BYTES = 1 << 16  # more than there are jails
_EARLY_SECONDS = 2.0  # how far two sockets may disagree about the order of things; pids come round much later

#: How a zygote is started. Its programs do not see these: it sets its environment anew when it is warm.
WARMING = {
    "PYTHONPATH": policy.CODE_DIR,  # where it finds `sitecustomize`
    "BELLJAR_ZYGOTE": "belljar.inside.zygote.server",  # the module that serves
    "LD_BIND_NOW": "1",  # symbols bound late are bound anew in every guest
    "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://_belljar_displays",
}

Reaped = Callable[[int, float], None]  # wait status, CPU seconds


class StartFailed(Exception):
    """A warden or zygote did not come up; the message carries what it said."""


class OutOfDescriptors(StartFailed):
    """This process or the warden has no file descriptors left for what was asked; everything else goes on."""


#: What the kernel says when a process has no descriptors left, the machine has none, or too many are being passed on.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)


class WardenHandle:
    """A running warden: ask it for zygotes and jails, hear which of its children ended."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.log = LogPipe()
        self.is_lost = False
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_ask = 0
        self._watched: dict[int, Reaped] = {}
        self._early: dict[int, tuple[float, int, float]] = {}  # ended before we knew who they were, and when
        self._ready: asyncio.Future[None] = self._loop.create_future()

    async def start(self, orders: Mapping[str, Any]) -> None:
        """Exec the warden with a clean environment, tell it what to build, and wait until its pool is there.

        Raises:
            StartFailed: it could not be; the message says at which call.
        """
        self._socket, theirs = channel.pair()
        command = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), _SOURCES]
        with theirs:
            # From this thread, and in one go: the keeper dies with the thread that started it.
            self.process = subprocess.Popen(  # noqa: ASYNC220
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.log.write,
                stderr=self.log.write,
                env={"LANG": "C.UTF-8"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        await self._finish_start(orders)

    async def _finish_start(self, orders: Mapping[str, Any]) -> None:
        """Whoever is at the other end of the socket now builds a pool to these orders."""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_readable)
        channel.send(self._socket, dict(orders))
        await self._ready

    async def start_zygote(self, python: str, environ: Mapping[str, str], control: int) -> tuple[int, int]:
        """A new zygote with `control` as its socket: its pid, and a pidfd of it that the caller owns."""
        message = {"python": python, "environ": dict(environ)}
        pid, pidfd = await self._await_answer(self._ask(message, [control, self.log.write]))
        return pid, pidfd

    async def find_missing(self, pids: Sequence[int]) -> list[int]:
        """Which of these are not, or no longer, the warden's children."""
        return list(await self._ask({"orphans": list(pids)}, []))

    async def make_jail(self, disk_bytes: int, has_own_devices: bool = False) -> tuple[int, list[int]]:
        """A new empty jail: the pid of the process that holds it, and descriptors that the caller owns.

        First a pidfd of that process, then what `Warden.make_jail` says of `disk_bytes`.
        """
        devices = [mounts.make_devices()] if has_own_devices else []
        try:
            asked = self._ask({"disk_bytes": disk_bytes}, devices)
        finally:
            for each in devices:  # the message holds it now
                os.close(each)
        pid, *descriptors = await self._await_answer(asked)
        return pid, descriptors

    def renew(self, jail_init: int, disk_bytes: int) -> asyncio.Future[list[int]]:
        """Have the directories of an empty jail mounted anew: `Warden.open_dirs`, which whoever hears of it owns."""
        return self._ask({"renew": True, "disk_bytes": disk_bytes}, [jail_init])

    async def listen(self, place: int, port: int) -> tuple[int, int]:
        """A listener on the loopback of a network namespace, or of a process's; port 0: any.

        Its port, and it, which the caller owns.
        """
        port, listener = await self._await_answer(self._ask({"listen": port}, [place]), is_process=False)
        return port, listener

    async def graft(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Have the namespaces of a branch made (`inside/warden/branch_namespaces.py`): pid and pidfd of their maker."""
        pid, pidfd = await self._await_answer(self._ask({"graft": dict(order)}, descriptors))
        return pid, pidfd

    async def deposit(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Have a file written, as `inside/warden/file_writer.py` says: pid and pidfd of the process that writes it."""
        pid, pidfd = await self._await_answer(self._ask({"deposit": dict(order)}, descriptors))
        return pid, pidfd

    def watch(self, pid: int, ended: Reaped) -> None:
        """Call `ended` once the warden has reaped `pid`, be it already so."""
        at, status, cpu_seconds = self._early.pop(pid, (0.0, 0, 0.0))
        if at > self._loop.time() - _EARLY_SECONDS:  # else it was somebody else, who had the same pid
            ended(status, cpu_seconds)
        else:
            self._watched[pid] = ended

    def unwatch(self, pid: int) -> None:
        """Nobody cares any more."""
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

    @staticmethod
    async def _await_answer(asked: asyncio.Future[Any], is_process: bool = True) -> Any:
        """The answer. Who is cancelled when it has just come gives back what came with it."""
        try:
            return await asked
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:
                throw_away(asked.result()[1:], is_process)
            raise

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
        """An answer for whose descriptors we have no room: that request alone fails, and what was made is ended."""
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
                throw_away(descriptors, "pid" in message)
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
        """End the warden at once: its keeper's death takes it along. We hear of it as of any other loss."""
        self.process.kill()

    async def close(self) -> None:
        """End the warden, and with it everything in its pid namespace; wait until it is gone."""
        if not hasattr(self, "process"):
            if hasattr(self, "_socket"):
                self._socket.close()
            self.log.close()
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()  # the warden leaves on its own: the keeper's exit then proves the pool is gone
        try:
            async with asyncio.timeout(5.0):
                await wait_until_gone(self.process)
        except TimeoutError:
            self.kill()
            await wait_until_gone(self.process)
        self.process.wait()
        self.log.close()
        if not self._ready.done():
            self._ready.cancel()


def throw_away(descriptors: Sequence[int], is_process: bool) -> None:
    """Nobody wants what was made: end it, if the first of these is a pidfd, and close them."""
    if is_process:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)
    for descriptor in descriptors:
        os.close(descriptor)


class ZygoteHandle:
    """A running zygote: tell it to fork, hear who ended; and who was born, once it is gone."""

    def __init__(self, kind: str, listener: ZygoteListener) -> None:
        self.kind = kind
        self.is_lost = False
        self.forks = 0
        self.gate: Gate | None = None  # of sessions: by which they can be branched; it outlives the zygote
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._pidfd = -1
        self._births = -1
        self._births_kept: bytes | None = None  # what stood in it when the zygote was closed
        self.jails: set[int] = set()  # those it can fork into
        self._warm: asyncio.Future[str] = self._loop.create_future()
        self.started_at = self._loop.time()

    async def start(self, warden: WardenHandle, python: str, greeting: Mapping[str, Any], warm_seconds: float) -> None:
        """Start it in the warden's pool and wait until its imports are done.

        Raises:
            StartFailed: it did not come up in time or an import failed; the message carries what it printed.
        """
        self._births = os.memfd_create("belljar-births", os.MFD_CLOEXEC)
        try:
            self._socket, theirs = channel.pair()
        except OSError:
            os.close(self._births)
            raise
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_warm)
        environ = {**greeting["environ"], **WARMING}
        try:
            with theirs:
                self.pid, self._pidfd = await warden.start_zygote(python, environ, theirs.fileno())
            channel.send(self._socket, dict(greeting), descriptors=[self._births])
            self.python_version = await asyncio.wait_for(self._warm, warm_seconds)
        except (TimeoutError, channel.ChannelClosed) as error:
            self.close()
            raise StartFailed(f"the zygote did not become warm: {self._said(warden)}") from error
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _said(warden: WardenHandle) -> str:
        return warden.log.tail.decode("utf-8", "replace").strip() or "it said nothing"

    def add_jail(self, jail: int, descriptors: Sequence[int], has_rules: bool) -> None:
        """Tell it of a jail, as `Jail.descriptors` says; the caller keeps its copies of the descriptors.

        Raises:
            channel.ChannelClosed: the zygote is gone.
        """
        self._check_alive()
        channel.send(self._socket, {"jail": jail, "has_rules": has_rules}, descriptors=descriptors)
        self.jails.add(jail)

    def fork(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Fork a guest, as `protocol.FORK` says; the caller keeps its copies of the descriptors.

        Raises:
            channel.ChannelClosed: the zygote is gone.
        """
        self._check_alive()
        self.forks += 1
        channel.send_packet(self._socket, channel.NO_MESSAGE + order, descriptors)

    def _check_alive(self) -> None:
        if self.is_lost:
            raise channel.ChannelClosed("the zygote is gone")

    def pid_of(self, guest: int, jail: int) -> int | None:
        """The guest's pid in the warden's pid namespace; None if it was not forked."""
        at, size = jail * protocol.BIRTH.size, protocol.BIRTH.size
        kept = self._births_kept
        record = os.pread(self._births, size, at) if kept is None else kept[at : at + size]
        if len(record) < size:
            return None
        number, pid = protocol.BIRTH.unpack(record)
        return pid if number == guest else None

    def forget_jail(self, jail: int) -> None:
        """The jail is gone, or has other descriptors now; drop what the zygote holds of it."""
        if jail in self.jails:
            self.jails.discard(jail)
            with contextlib.suppress(channel.ChannelClosed, BlockingIOError):
                channel.send(self._socket, {"forget": jail})

    def _on_warm(self) -> None:
        """The first packet; a zygote of sessions sends along where their questions arrive."""
        try:
            message, _, descriptors = channel.receive(self._socket, 1)
        except BlockingIOError:
            return
        except channel.DescriptorsLost as error:
            if not self._warm.done():
                self._warm.set_exception(OutOfDescriptors(str(error)))
            return
        except channel.ChannelClosed:
            self._lose()
            return
        self._loop.add_reader(self._socket, self._on_readable)
        if descriptors:
            self.gate = Gate(*descriptors)
        if not self._warm.done():
            self._warm.set_result(message["warm"])

    def _on_readable(self) -> None:
        """One packet: if there are more, the loop calls again."""
        try:
            packet = self._socket.recv(_NEWS_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        if packet.startswith(channel.NO_MESSAGE):
            guest, status, cpu_microseconds = protocol.ENDED.unpack_from(packet, len(channel.NO_MESSAGE))
            self._listener.guest_ended(guest, status, cpu_microseconds / 1e6)
        else:
            self._receive(packet)

    def _receive(self, packet: bytes) -> None:
        try:
            message, _ = channel.parse(packet)
        except channel.ChannelClosed:
            self._lose()
            return
        if "unborn" in message:
            self._listener.guest_unborn(message["unborn"], message["reason"])

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.remove_reader(self._socket)
            if not self._warm.done():
                self._warm.set_exception(channel.ChannelClosed("the zygote has ended"))
            else:
                self._listener.zygote_lost(self)

    def retire(self) -> None:
        """Ask it to leave; what it still has to say is heard. Its guests live on under the warden."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the zygote now; guests it has forked live on under the warden."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self.is_lost = True
        self._socket.close()
        self._births_kept = os.pread(self._births, _BIRTHS_BYTES, 0)
        os.close(self._births)
        if not self._warm.done():
            self._warm.cancel()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1


class ZygoteListener:
    """Who wants to hear what becomes of guests."""

    def guest_unborn(self, guest: int, reason: str) -> None:
        """The fork failed."""
        raise NotImplementedError

    def guest_ended(self, guest: int, status: int, cpu_seconds: float) -> None:
        """The guest's own process has ended; others it started may live."""
        raise NotImplementedError

    def zygote_lost(self, zygote: ZygoteHandle) -> None:
        """The zygote has died on its own."""
        raise NotImplementedError
