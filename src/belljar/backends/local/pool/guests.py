"""A guest as the host holds it, and all guests of a pool: from the fork until the host knows how each has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import O_CLOEXEC, close, fchmod, pipe2, set_blocking

from belljar import channel
from belljar.aio import cancel_all
from belljar.backends.local.pool.descriptors import keep_reserve
from belljar.backends.local.pool.jails import Jail
from belljar.backends.local.pool.warden_handle import WardenHandle
from belljar.backends.local.pool.zygotes import Recipe, ZygoteHandle, ZygoteListener, Zygotes
from belljar.settings import PoolSettings

_log = logging.getLogger("belljar.local")


class Guest:
    """A jailed fork: waiting for its program, then running it."""

    pid: int | None = None  # known once its zygote is gone: the warden then reports by it
    has_ended = False
    ended: Callable[[int | None, float], None] | None = None  # wait status (None: unknown), CPU seconds
    stdout = their_stdout = stderr = their_stderr = -1
    their_channel: channel.Peer | None = None

    def __init__(self, number: int, jail: Jail, zygote: ZygoteHandle, stays: bool) -> None:
        """Open its pipes. A guest that `stays` has a socket of its own; others share their jail's.

        Raises:
            OSError: no descriptors are left but the reserve; nothing stays open.
        """
        self.number = number
        self.jail = jail
        self.zygote = zygote
        self.kind = zygote.kind
        self.channel = jail.channel
        if stays:
            self.channel, self.their_channel = channel.bare_pair()
        try:
            self.stdout, self.their_stdout = stdout, _ = pipe2(O_CLOEXEC)
            self.stderr, self.their_stderr = stderr, newest = pipe2(O_CLOEXEC)
            keep_reserve(newest)
        except OSError:
            self._close_channel()
            for descriptor in (self.stdout, self.their_stdout, self.stderr, self.their_stderr):
                if descriptor >= 0:
                    close(descriptor)
            raise
        set_blocking(stdout, False)
        set_blocking(stderr, False)
        fchmod(stdout, 0o666)  # it is ours; a program that opens /dev/stdout must be able to
        fchmod(stderr, 0o666)

    @property
    def their_ends(self) -> tuple[int, ...]:
        """The descriptors that the zygote gives to the fork."""
        ends = self.their_stdout, self.their_stderr
        return ends if self.their_channel is None else (*ends, self.their_channel.fileno())

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send the program. Until the guest confirms that it has read it, its jail cannot be reused.

        Raises:
            ChannelClosed, BlockingIOError: the guest is gone.
        """
        self.jail.is_unread = True
        channel.send_packet(self.channel, packet, descriptors, channel.NOW)

    def close_their_ends(self) -> None:
        """Close the guest's ends: the zygote has copies of them."""
        if self.their_channel is not None:
            self.their_channel.close()
        close(self.their_stdout)
        close(self.their_stderr)

    def close(self) -> None:
        """Close our ends. The guest has ended or is about to be killed."""
        self._close_channel()
        close(self.stdout)
        close(self.stderr)

    def _close_channel(self) -> None:
        if self.their_channel is not None:  # else it is the jail's
            self.channel.close()
            self.their_channel.close()


class LiveGuests(ZygoteListener):
    """The zygotes of a pool and every guest that they have forked and that has not ended.

    A zygote reports the ends of its guests. When it dies, its guests are orphans: they live on under the warden, which
    reports their ends by their pids.
    """

    def __init__(
        self, name: str, warden: WardenHandle, settings: PoolSettings, recipe: Callable[[str], Recipe]
    ) -> None:
        self.zygotes = Zygotes(warden, self, settings, recipe, self._zygote_reaped)
        self.by_number: dict[int, Guest] = {}
        self._name = name  # of the environment, for the log
        self._warden = warden
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def guest_unborn(self, number: int, reason: str) -> None:
        """End a guest whose fork failed: its jail is of no use."""
        guest = self.by_number.get(number)
        if guest is not None:
            if not guest.jail.is_killed:  # else its run was given up before it began
                _log.error("a guest could not be forked: %s", reason)
            guest.jail.kill()
            self.end(guest, None, 0.0)

    def guest_ended(self, number: int, status: int, cpu_seconds: float) -> None:
        """Pass on that a guest's own process has ended."""
        guest = self.by_number.get(number)
        if guest is not None:
            if guest.pid is not None:
                self._warden.unwatch(guest.pid)
            self.end(guest, status, cpu_seconds)

    def end(self, guest: Guest, status: int | None, cpu_seconds: float) -> None:
        """Forget a guest and call its `ended`."""
        del self.by_number[guest.number]
        guest.has_ended = True
        ended, guest.ended = guest.ended, None
        if ended is not None:
            ended(status, cpu_seconds)

    def zygote_lost(self, zygote: ZygoteHandle) -> None:
        """Find the orphans of a zygote that has died; guests whose pid it did not record are lost."""
        if self.zygotes.lose(zygote):
            _log.error("the %s zygote of %s died; replacing it", zygote.kind, self._name)
        self._find_orphans(zygote)
        for guest in list(self.by_number.values()):
            if guest.pid is None and guest.zygote is zygote:
                guest.jail.kill()
                self.end(guest, None, 0.0)

    def _find_orphans(self, zygote: ZygoteHandle) -> dict[int, Guest]:
        """Its guests by their pids: from now on the warden reports their ends."""
        orphans = {}
        for guest in list(self.by_number.values()):
            if guest.zygote is not zygote:
                continue
            if guest.pid is None:
                guest.pid = zygote.pid_of(guest.number, guest.jail.number)
                if guest.pid is None:
                    continue
                self._warden.watch(guest.pid, partial(self.guest_ended, guest.number))
            if not guest.has_ended:  # the warden may have known already
                orphans[guest.pid] = guest
        return orphans

    def _zygote_reaped(self, zygote: ZygoteHandle) -> None:
        """The warden has inherited its guests, except those that it had reaped without reporting them."""
        orphans = self._find_orphans(zygote)
        if orphans and not self._is_closing and not self._warden.is_lost:
            task = asyncio.get_running_loop().create_task(self._end_unreported(orphans))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _end_unreported(self, orphans: Mapping[int, Guest]) -> None:
        for pid in await self._warden.find_missing(list(orphans)):
            guest = orphans[pid]
            if guest.number in self.by_number:
                guest.jail.kill()
                self.end(guest, None, 0.0)

    def unstick(self, guest: Guest) -> None:
        """End the zygote of a guest of which nothing is reported, or the warden if the zygote is not to blame."""
        if not guest.has_ended and not guest.zygote.is_lost:
            _log.error("the %s zygote of %s does not answer; ending it", guest.kind, self._name)
            guest.zygote.close()
            self.zygote_lost(guest.zygote)
        else:
            _log.error("the warden of %s does not answer; ending it", self._name)
            self._warden.kill()

    async def stop(self) -> None:
        """Start no more zygotes and end all; their guests live on until the warden ends."""
        self._is_closing = True
        await cancel_all(self._tasks)
        await self.zygotes.stop_starting()

    def lose(self) -> None:
        """End every guest: the warden is gone, and all of them with it."""
        for guest in list(self.by_number.values()):
            self.end(guest, None, 0.0)
        self.zygotes.close()
