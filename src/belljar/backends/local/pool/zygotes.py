"""The zygotes of one pool: warm processes that guests are forked from, one for each kind in use.

A kind is what a zygote has imported: 'bare' the basics of the standard library, 'packages' the environment's warm
imports, 'session' those and IPython: its guests are sessions. Each is started when first needed, replaced after so many
forks, and let go when unused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from belljar import channel
from belljar.aio import cancel_all
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.setns_gate import Gate
from belljar.backends.local.pool.warden_handle import OutOfDescriptors, StartFailed, WardenHandle
from belljar.contract.errors import JailSetupFailed
from belljar.inside.zygote import protocol
from belljar.jail import policy
from belljar.settings import PoolSettings

_log = logging.getLogger("belljar.local")
BARE, PACKAGES, SESSION = "bare", "packages", "session"
_WARM_SECONDS = 120.0  # for imports, however slow the disk
_NEWS_BYTES = 4096
_BIRTHS_BYTES = 1 << 16  # more than there are jails

#: The environment of a starting zygote. Programs do not see it: a warm zygote replaces its environment.
WARMING = {
    "PYTHONPATH": policy.CODE_DIR,  # where it finds `sitecustomize`
    "LD_BIND_NOW": "1",  # symbols bound late are bound again in every guest
    "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://_belljar_displays",
}

Recipe = tuple[str, Mapping[str, Any]]  # the interpreter as the guests' root has it, and the zygote's first message


class ZygoteHandle:
    """A running zygote: orders forks, and reports which guests have ended. Keeps the guests' pids when it is gone."""

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
        """Start it in the warden's namespaces and wait until its imports are done.

        Raises:
            StartFailed: it was not warm in time or an import failed; the message quotes what it printed.
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
            printed = warden.log.tail.decode("utf-8", "replace").strip() or "it printed nothing"
            raise StartFailed(f"the zygote did not become warm: {printed}") from error
        except BaseException:
            self.close()
            raise

    def add_jail(self, jail: int, descriptors: Sequence[int], has_rules: bool) -> None:
        """Send it the descriptors of a jail (`Jail.descriptors`); the caller keeps its copies.

        Raises:
            channel.ChannelClosed: the zygote is gone.
        """
        self._check_alive()
        channel.send(self._socket, {"jail": jail, "has_rules": has_rules}, descriptors=descriptors)
        self.jails.add(jail)

    def fork(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Fork a guest (`protocol.FORK`); the caller keeps its copies of the descriptors.

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
        """Have the zygote close its descriptors of a jail that is gone, or has other descriptors now."""
        if jail in self.jails:
            self.jails.discard(jail)
            with contextlib.suppress(channel.ChannelClosed, BlockingIOError):
                channel.send(self._socket, {"forget": jail})

    def _on_warm(self) -> None:
        """The first packet; a zygote of sessions sends the listener of its seccomp filter with it."""
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
        """Read one packet: if there are more, the loop calls again."""
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
        """Ask it to exit; what it still reports is read. Its guests live on under the warden."""
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
    """Receives what zygotes report about their guests."""

    def guest_unborn(self, guest: int, reason: str) -> None:
        """Called when the fork failed."""
        raise NotImplementedError

    def guest_ended(self, guest: int, status: int, cpu_seconds: float) -> None:
        """Called when the guest's own process has ended; others that it started may live."""
        raise NotImplementedError

    def zygote_lost(self, zygote: ZygoteHandle) -> None:
        """Called when the zygote has died on its own."""
        raise NotImplementedError


class Zygotes:
    """The zygotes of a pool, by kind. All methods run on the loop's thread."""

    def __init__(
        self,
        warden: WardenHandle,
        listener: ZygoteListener,
        pool: PoolSettings,
        recipe: Callable[[str], Recipe],
        on_reaped: Callable[[ZygoteHandle], None],
    ) -> None:
        """`recipe` says how a zygote of a kind is started; `on_reaped` is called once the warden has reaped one."""
        self.replaced = 0
        self._warden = warden
        self._listener = listener
        self._pool_settings = pool
        self._recipe = recipe
        self._on_reaped = on_reaped
        self._loop = asyncio.get_running_loop()
        self._current: dict[str, ZygoteHandle] = {}
        self._retired: set[ZygoteHandle] = set()  # asked to exit, still there
        self._starting: dict[str, asyncio.Task[ZygoteHandle]] = {}
        self.used_at: dict[str, float] = {}  # when a guest of each kind was last leased
        self._gates: set[Gate] = set()  # of all zygotes of sessions: a gate outlives its zygote
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[ZygoteHandle]:
        """Those that guests are forked from now."""
        return iter([zygote for zygote in self._current.values() if not zygote.is_lost])

    def find(self, kind: str) -> ZygoteHandle | None:
        """The zygote of this kind, if it is warm."""
        current = self._current.get(kind)
        return None if current is None or current.is_lost else current

    async def get(self, kind: str) -> ZygoteHandle:
        """The zygote of this kind, started if necessary; concurrent callers share one start.

        Raises:
            JailSetupFailed: it does not start. Overloaded: no descriptors are left for it.
        """
        current = self.find(kind)
        if current is not None:
            return current
        if kind not in self._starting:
            self._start_in_background(kind)
        return await asyncio.shield(self._starting[kind])

    def _start_in_background(self, kind: str) -> None:
        task = self._starting[kind] = self._loop.create_task(self._start(kind))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: its awaiters raise it

    async def _start(self, kind: str) -> ZygoteHandle:
        fresh = ZygoteHandle(kind, self._listener)
        try:
            await fresh.start(self._warden, *self._recipe(kind), _WARM_SECONDS)
        except OutOfDescriptors as error:
            raise descriptors.refusal() from error
        except StartFailed as error:
            raise JailSetupFailed("zygote", str(error)) from error
        finally:
            self._starting.pop(kind, None)
            if fresh.gate is not None:
                self._gates = {gate for gate in (*self._gates, fresh.gate) if not gate.is_closed}
        self._warden.watch(fresh.pid, lambda *_: self._on_reaped(fresh))
        before = self.find(kind)
        self._current[kind] = fresh
        if before is not None:
            self._retire(before)
        self.used_at[kind] = self._loop.time()
        return fresh

    def _retire(self, zygote: ZygoteHandle) -> None:
        self._retired.add(zygote)
        zygote.retire()

    def note_fork(self, zygote: ZygoteHandle) -> None:
        """Replace a zygote that has forked often enough."""
        if zygote.forks >= self._pool_settings.zygote_forks:
            self._rotate(zygote)

    def rotate_old(self) -> None:
        """Replace those that have lived long enough."""
        for zygote in list(self._current.values()):
            if zygote.forks and self._loop.time() - zygote.started_at >= self._pool_settings.zygote_seconds:
                self._rotate(zygote)

    def _rotate(self, zygote: ZygoteHandle) -> None:
        """Start a replacement, unless one is being started."""
        kind = zygote.kind
        if self._current.get(kind) is zygote and kind not in self._starting and not self._is_closing:
            self._start_in_background(kind)

    def lose(self, zygote: ZygoteHandle) -> bool:
        """Close a zygote that has died; return whether guests were forked from it, so that it is replaced."""
        zygote.close()
        self._retired.discard(zygote)
        if self._current.get(zygote.kind) is not zygote:  # one that was retired
            return False
        self.replaced += 1
        del self._current[zygote.kind]
        if not self._is_closing and zygote.kind not in self._starting:
            self._start_in_background(zygote.kind)
        return True

    def let_go_of_unused(self) -> list[str]:
        """Retire zygotes that only some programs need and that were unused for a while; return their kinds."""
        gone = []
        for kind in (PACKAGES, SESSION):
            idle_seconds = self._loop.time() - self.used_at.get(kind, 0.0)
            if kind in self._current and idle_seconds > self._pool_settings.idle_seconds and kind not in self._starting:
                self._retire(self._current.pop(kind))
                gone.append(kind)
        return gone

    async def stop_starting(self) -> None:
        """Start no more zygotes, and cancel those that are being started."""
        self._is_closing = True
        await cancel_all(self._starting.values())

    def close(self) -> None:
        """End all zygotes; their guests live on until the warden ends."""
        self._is_closing = True
        for gate in self._gates:
            gate.close()
        for zygote in (*self._current.values(), *self._retired):
            zygote.close()
