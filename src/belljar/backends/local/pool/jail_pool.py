"""The jails of one pool: made when wanted, used again when they are as new, mended or given up when they are not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.jails import JAILS_MAX, Jail, JailSlots
from belljar.backends.local.pool.warden_handle import (
    OutOfDescriptors,
    StartFailed,
    WardenHandle,
    throw_away,
)
from belljar.contract.errors import JailSetupFailed, Overloaded, ZygoteDied

_log = logging.getLogger("belljar.local")
JAIL_SECONDS = 30.0  # for the warden to make one


class JailPool:
    """Every jail of a pool; `idle` are those that nobody is in. All methods run on the loop's thread."""

    def __init__(
        self,
        jail_slots: JailSlots,
        warden: WardenHandle,
        disk_bytes: int,
        has_own_devices: bool,
        on_added: Callable[[], None],
        on_changed: Callable[[Jail], None],
    ) -> None:
        """`disk_bytes` is what the directories of a jail hold; 0: jails have none, each guest makes its own.

        `has_own_devices`: device nodes are made for each jail, else all share those of the host.

        `on_added` hears that a jail has become idle, but not of one that was put back; `on_changed` of each that has
        other descriptors now, or has ended.
        """
        self.disk_bytes = disk_bytes
        self._has_own_devices = has_own_devices
        self.idle: list[Jail] = []
        self._jail_slots = jail_slots
        self._warden = warden
        self._on_added = on_added
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._jails: dict[int, Jail] = {}
        self._being_made = 0
        self._renewals: dict[Jail, asyncio.Future[list[int]]] = {}  # jails that get fresh directories, then are idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._jails)

    async def close(self) -> None:
        """Make no more. Those there are end with their warden."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self) -> None:
        """The warden is gone, and with it every jail."""
        self._is_closed = True
        for jail in list(self._jails.values()):
            jail.lose()

    async def make(self) -> Jail:
        """A new jail, which is the caller's to put back.

        Raises:
            Overloaded: there are as many as there can be, or no descriptors for another.
            JailSetupFailed: it could not be made.
            ZygoteDied: it ended at once.
        """
        jail_slot = self._jail_slots.take()
        if jail_slot is None:
            raise Overloaded(f"all {JAILS_MAX} jails are in use; try again later")
        self._being_made += 1
        try:
            async with asyncio.timeout(JAIL_SECONDS):
                pid, made = await self._warden.make_jail(self.disk_bytes, self._has_own_devices)
        except TimeoutError as error:
            self._jail_slots.give_back(jail_slot)
            self._warden.kill()
            raise JailSetupFailed("jail", "the warden does not answer") from error
        except OutOfDescriptors as error:
            self._jail_slots.give_back(jail_slot)
            raise descriptors.refusal() from error
        except (StartFailed, OSError) as error:
            self._jail_slots.give_back(jail_slot)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise JailSetupFailed("jail", str(error)) from error
        except BaseException:
            self._jail_slots.give_back(jail_slot)
            raise
        finally:
            self._being_made -= 1
        try:
            descriptors.keep_reserve(max(made))
            jail = Jail(jail_slot, self._warden, pid, made, self._jail_gone)
        except (OSError, StopIteration) as error:  # it has died meanwhile, or there are no descriptors for it
            throw_away(made, is_process=True)
            self._jail_slots.give_back(jail_slot)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise ZygoteDied("a jail ended while it was made") from error
        self._jails[jail.number] = jail
        return jail

    def want(self, count: int) -> None:
        """Have as many made as are missing, those not counted that will be idle soon."""
        for _ in range(count - self._being_made - len(self._renewals)):
            task = self._loop.create_task(self._make_idle())
            self._tasks.add(task)
            task.add_done_callback(self._made_idle)

    async def _make_idle(self) -> None:
        with contextlib.suppress(JailSetupFailed, Overloaded):
            self._add(await self.make())

    def _made_idle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it was there too late for whoever wanted it, who makes another

    def _add(self, jail: Jail) -> None:
        self.idle.append(jail)
        self._on_added()

    def put_back(self, jail: Jail) -> None:
        """Nobody has been in it since it was as new."""
        self.idle.append(jail)

    def release(self, jail: Jail, is_empty: bool) -> None:
        """Its run is over, and everything of it has been read. Keep it if it is as new, or can be made so."""
        jail.is_leased = False
        if jail.is_gone:
            self._forget(jail)
        elif not is_empty:
            jail.kill()
        elif jail.is_pristine():
            self.idle.append(jail)
        else:
            self._renew(jail)

    def _renew(self, jail: Jail) -> None:
        """Its guest has left something: if no more than files, have its directories mounted anew."""
        if not jail.is_deserted() or not jail.has_used_dirs() or self._is_closed:
            jail.kill()
            return
        jail.let_go_of_dirs()
        renewal = self._warden.renew(jail.jail_init, self.disk_bytes)
        self._renewals[jail] = renewal
        renewal.add_done_callback(lambda _: self._renewed(jail, renewal))

    def _renewed(self, jail: Jail, renewal: asyncio.Future[list[int]]) -> None:
        """Not a task: nobody can cancel this, so what came is either the jail's or closed."""
        del self._renewals[jail]
        fresh = [] if renewal.exception() else renewal.result()
        if jail.is_gone or jail.is_killed or not fresh:
            for directory in fresh:
                os.close(directory)
            if not jail.is_gone and not jail.is_killed:
                _log.warning("the directories of a jail were not mounted anew: %s", renewal.exception())
            jail.kill()
            return
        jail.take_dirs(fresh)
        self._on_changed(jail)
        if jail.is_pristine():
            self._add(jail)
        else:
            jail.kill()

    async def wait_for_renewal(self) -> bool:
        """Whether it was worth waiting: a jail was being mended and none idle, and that is sooner than one is made."""
        if self.idle or not self._renewals:
            return False
        await asyncio.wait(self._renewals.values(), timeout=JAIL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return True

    def give_up_idle(self) -> None:
        """End every jail that nobody is in."""
        idle, self.idle = self.idle, []
        for jail in idle:
            jail.kill()

    def _jail_gone(self, jail: Jail) -> None:
        self._jails.pop(jail.number, None)
        if jail in self.idle:
            self.idle.remove(jail)
        self._on_changed(jail)
        if not jail.is_leased:  # else its run still reads the cgroup
            self._forget(jail)

    def _forget(self, jail: Jail) -> None:
        jail.close()
        self._jail_slots.give_back(jail.jail_slot)
