"""The pool of one environment on this machine: runs each program or session in a guest of its own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.backends.local.features.feature import Features, GuestFeature
from belljar.backends.local.pool.guests import Guest, LiveGuests
from belljar.backends.local.pool.jail_slots import JAILS_MAX, JailSlots
from belljar.backends.local.pool.ready_guests import ReadyGuests
from belljar.backends.local.pool.view import GuestView, Walls, import_pattern, imports_any
from belljar.backends.local.pool.warden_handle import Keeper, StartFailed, WardenHandle, WardenProcess
from belljar.backends.local.pool.zygotes import BARE, PACKAGES, SESSION, Recipe
from belljar.backends.local.run.run import Run
from belljar.backends.local.session.process import FirstProcess
from belljar.backends.local.session.session import LocalSession, check_ipython
from belljar.contract.backend import Watcher
from belljar.contract.errors import JailSetupFailed, ZygoteDied
from belljar.contract.execution import Evidence, Execution
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.environments import Environment
from belljar.jail import policy
from belljar.jail.namespaces import can_count_apart
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.features.network import NetworkAccess, NetworkAccessPoint
    from belljar.backends.local.languages.standby import StandbyPool
    from belljar.backends.local.languages.steps import Command

_log = logging.getLogger("belljar.local")
_UNLIMITED_SECONDS = 1e8


class LocalPool:
    """One environment, warm: a `GuestPool`. All methods run on the loop's thread."""

    is_disposable = False
    used_at = 0.0

    def __init__(
        self,
        environment: Environment,
        view: GuestView,
        walls: Walls,
        jail_slots: JailSlots,
        settings: Settings,
        features: Features,
        network: Callable[[], NetworkAccessPoint],
        standbys: StandbyPool | None = None,
        process: WardenProcess | None = None,
    ) -> None:
        """`network` is called when a program first has one; `standbys` are commands that were started ahead.

        `process` becomes the warden; None: one that is executed on this machine.
        """
        self.environment = environment
        self.is_lost = False
        self._view = view
        self._walls = walls
        self._settings = settings
        self._bounds = settings.request
        self._features = features
        self._network = network
        self._standbys = standbys
        self._is_closing = False
        # Without a cgroup the kernel counts processes by uid and user namespace, and a plain user has but one uid.
        self._is_counted_apart = not (walls.cgroup or walls.as_root) and can_count_apart()
        self._warden = WardenHandle(process or Keeper(), self._warden_lost)
        self.guests = ReadyGuests(
            LiveGuests(environment.name, self._warden, settings.pool, self._recipe),
            self._warden,
            jail_slots,
            settings.pool,
            settings.default_limits,
            walls,
            self._is_counted_apart,
        )
        tops = {name.split(".")[0] for name in environment.warm_imports}
        self._package_pattern = import_pattern(tops) if tops else None

    # ---- opening and closing

    async def open(self) -> None:
        """Start the warden and the bare zygote.

        Raises:
            JailSetupFailed: one of them did not start.
        """
        walls, view, first_uid = self._walls, self._view, self.guests.jail_slots.first_uid
        orders = {
            "as_root": walls.as_root,
            "uid_base": walls.uid_base,
            "guest_uids": [first_uid + number for number in range(JAILS_MAX if walls.as_root else 1)],
            "bound": dict(view.bound),
            "hidden": list(view.hidden),
            "system": view.system,
            "landlock_version": walls.landlock_version,
            "is_counted_apart": self._is_counted_apart,
            "has_own_devices": walls.own_devices,
        }
        try:
            await self._warden.start(orders)
        except StartFailed as error:
            raise JailSetupFailed("pool", str(error)) from error
        await self.guests.warm(BARE)

    def _recipe(self, kind: str) -> Recipe:
        walls, view = self._walls, self._view
        return view.python, {
            "imports": list(view.bare_imports if kind == BARE else view.warm_imports),
            "stays": kind == SESSION,
            "environ": dict(view.environ),
            "landlock_version": walls.landlock_version,
            "changes_uid": walls.as_root,
            "is_counted_apart": self._is_counted_apart,
            "can_watch": walls.own_devices,
            "counts_cpu": not walls.cgroup,
            "makes_ready": kind != SESSION and self._settings.pool.ready_guests > 0,
        }

    def warm_up(self) -> None:
        """Fork guests ahead of the first program."""
        self.guests.refill(BARE)

    def maintain(self) -> None:
        """Replace old zygotes, and let go of those that were unused for a while."""
        self.guests.let_go_of_unused()

    def retire(self) -> None:
        """End the commands that were started ahead: no more programs come."""
        if self._standbys is not None:
            self._standbys.leave(self.guests)

    async def close(self) -> None:
        """End every process of this pool and wait until all are gone."""
        self._is_closing = True
        await self.guests.close()
        await self._warden.close()
        self._lose()

    def _warden_lost(self) -> None:
        if not self._is_closing:
            _log.error("the warden of %s died; its pool is rebuilt on the next request", self.environment.name)
        self._lose()

    def _lose(self) -> None:
        self.is_lost = True
        self.guests.lose()

    @property
    def is_idle(self) -> bool:
        """Whether no program and no session runs in it."""
        return self.guests.is_idle

    def shows(self, places: Mapping[str, str]) -> bool:
        """Whether guests see all of these places; that was decided when the pool was made."""
        return places.items() <= self._view.bound.items()

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring."""
        return self.guests.facts()

    # ---- programs

    def _choose_kind(self, execution: Execution) -> str:
        """Which zygote this program should come from, by what it and its own modules import."""
        pattern = self._package_pattern
        if pattern is None or ("import" not in execution.code and not execution.files):
            return BARE
        return PACKAGES if imports_any(pattern, execution) else BARE

    async def run(
        self, execution: Execution, watcher: Watcher | None = None, command: Command | None = None
    ) -> Evidence:
        """Run one program to its end: in Python, or as `command`.

        Raises:
            ZygoteDied: the guest was lost; the same request may be tried on another.
        """
        if command is not None:
            return await self._run_command(execution, watcher, command)
        kind = self._choose_kind(execution)
        limits, guests = execution.limits, self.guests
        guest = guests.lease_ready(kind, limits) or await guests.lease(kind, limits)
        try:
            if not _is_plain(execution):
                return await self._run_with_features(guest, execution, watcher, (), policy.PROGRAM_NAME)
            evidence = await Run(guest, execution, watcher, self._bounds, guests, kind == PACKAGES).play()
            guests.succeeded()
            return evidence
        finally:
            self._let_go(guest)

    async def _run_command(self, execution: Execution, watcher: Watcher | None, command: Command) -> Evidence:
        if command.standby is not None and self._standbys is not None and not execution.network:
            seen = await self._standbys.run(self.guests, command.standby, execution, watcher)
            if seen is not None:
                return seen
        limits = execution.limits
        guest = self.guests.lease_ready(BARE, limits) or await self.guests.lease(BARE, limits)
        try:
            start = self._play if _is_plain(execution) else self._run_with_features
            return await start(guest, execution, watcher, (command.feature,), command.source)
        finally:
            self._let_go(guest)

    async def _run_with_features(
        self,
        guest: Guest,
        execution: Execution,
        watcher: Watcher | None,
        features: Sequence[GuestFeature],
        source: str,
    ) -> Evidence:
        with self._features.opened(execution, self.environment, watcher) as opened:
            features = [*(each.feature for each in opened), *features]
            evidence = await self._play(guest, execution, watcher, features, source)
            for each in opened:
                evidence = each.complete(evidence)
            return evidence

    async def _play(
        self,
        guest: Guest,
        execution: Execution,
        watcher: Watcher | None,
        features: Sequence[GuestFeature],
        source: str,
    ) -> Evidence:
        network: NetworkAccess | None = None
        try:
            if execution.network:
                network = await self._network().open(self._warden, self._view.certificates, guest.jail.jail_init)
                execution = dataclasses.replace(execution, env=network.equip(execution.env))
            has_packages = guest.kind == PACKAGES
            run = Run(guest, execution, watcher, self._bounds, self.guests, has_packages, features, source)
            evidence = await run.play()
            self.guests.succeeded()
            return evidence if network is None else await network.finish(evidence)
        except ZygoteDied as error:
            if network is not None:
                await network.forbid_repeating(error)
            raise
        finally:
            if network is not None:
                network.drop()
                guest.jail.kill()  # whatever still arrives there must not reach another program

    def _let_go(self, guest: Guest) -> None:
        if self.guests.busy_guests:
            self._release(guest)
        else:  # no other program waits for a guest: after the answer is on its way
            self.guests.loop.call_soon(self._release, guest)

    def _release(self, guest: Guest) -> None:
        self.guests.release(guest)
        self.guests.refill(guest.kind)

    # ---- sessions

    async def open_session(self, order: SessionOrder, interpreter: Mapping[str, Any] | None = None) -> LiveSession:
        """Start an interpreter that stays; `interpreter` is that of another language, which runs beside Python's.

        Raises:
            ZygoteDied: the guest was lost; the same order may be tried on another.
        """
        check_ipython(self.environment)
        # The kernel's CPU limit is for the life of a process, and each cell of a session has its own clock.
        allowed = dataclasses.replace(order.limits, cpu_seconds=_UNLIMITED_SECONDS)
        guest = await self.guests.lease(SESSION, allowed)
        session = LocalSession(FirstProcess(self.guests, guest), order.limits, self._bounds)
        try:
            session.tools = self._features.session_tools(order)
            if order.network:
                session.network = await self._network().open(
                    self._warden, self._view.certificates, guest.jail.jail_init
                )
                order = dataclasses.replace(order, env=session.network.equip(order.env))
        except BaseException:
            await session.close()
            raise
        await session.start(order, interpreter)
        self.guests.succeeded()
        self.guests.loop.call_soon(self.guests.refill, SESSION)
        return session


def _is_plain(execution: Execution) -> bool:
    """Whether it needs nothing beside a guest."""
    return not (
        execution.network or execution.coverage is not None or execution.tools or execution.restrict is not None
    )
