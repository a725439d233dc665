"""The local back end: jails on this machine, one warm pool per environment."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from belljar.backends.local.features.feature import HostFeatures
from belljar.backends.local.features.restricted import PolicyReport
from belljar.backends.local.languages.standby import StandbyPool
from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.guests import Guest
from belljar.backends.local.pool.jails import JailSlots
from belljar.backends.local.pool.pool import LocalPool
from belljar.backends.local.pool.pools import GuestPools
from belljar.backends.local.pool.zygotes import BARE, PACKAGES, SESSION
from belljar.backends.local.run.run import Run
from belljar.backends.local.session.process import FirstProcess
from belljar.backends.local.session.session import LocalSession
from belljar.contract.backend import Watcher
from belljar.contract.errors import BelljarError, JailSetupFailed, NotOffered, SandboxFault, WallMissing, ZygoteDied
from belljar.contract.execution import MIB, Evidence, Execution, Limits
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.contract.tools import ToolHost
from belljar.environments import Environments, ensure_unless_cancelled
from belljar.jail import instance, mounts, policy, syscalls
from belljar.jail.cgroups import Cgroups, CgroupsUnavailable, find_hierarchies
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.features.network import NetworkAccess, NetworkAccessPoint
    from belljar.backends.local.languages.steps import Command, Commands
    from belljar.languages.toolchains import InstalledToolchains

_log = logging.getLogger("belljar.local")
_MAINTENANCE_SECONDS = 15.0
_ATTEMPTS = 4
_UNLIMITED_SECONDS = 1e8
_WITH_TOOLCHAINS = "@"  # between an environment and a root: a pool that shows the toolchains of that root, too


class LocalSandbox:
    """Runs programs in jails of this machine. Bound to the event loop that opens it."""

    name = "local"

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        tools: ToolHost | None = None,
        first_language: str = "python",
    ) -> None:
        """`first_language`: what the first program will be in, for which everything is made warm; none: nothing is."""
        self._settings = settings
        self._first_language = first_language
        self._tools = tools
        self._environments = environments
        self._progress = progress
        self._pools = GuestPools(self._make_pool)
        self._instance: instance.Instance | None = None
        self._cgroups: Cgroups | None = None
        self._maintenance: asyncio.TimerHandle | None = None
        self._faults = 0
        self._commands: Commands | None = None
        self._ways_out: NetworkAccessPoint | None = None
        self._standbys = StandbyPool(settings)

    async def open(self) -> None:
        """Claim what an instance needs, refuse if a wall is missing, and warm the default environment.

        Raises:
            WallMissing: a wall cannot be had and was not given up.
            SandboxFault: the jail does not work here.
        """
        descriptors.raise_limit(self._settings.pool)
        try:
            self._claim()
            kept = max(1, self._settings.pool.ready_guests)
            self._jail_slots = JailSlots(self._cgroups, changes_uid=os.geteuid() == 0, kept=kept)
            if self._first_language:
                await self._pools.enter(self._first_pool())
        except OSError as error:
            await self.close()
            raise self._unusable(error) from error
        except BaseException:
            await self.close()
            raise
        self._maintain()

    def check_walls(self) -> None:
        """Refuse what `open` would refuse for want of a wall, and leave nothing behind; takes milliseconds.

        Raises:
            WallMissing, SandboxFault.
        """
        try:
            self._claim()
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            self._give_back()

    def _claim(self) -> None:
        jail = self._settings.jail
        self._landlock_version = syscalls.landlock_version() if "landlock" not in jail.without_walls else 0
        self._instance = instance.reserve(self._settings.runtime_dir, jail.uid_base)
        missing = self._find_missing_walls()
        if missing:
            raise WallMissing("; ".join(missing) + ". Nothing was run.", walls=missing)

    def _give_back(self) -> None:
        if self._cgroups is not None:
            self._cgroups.close()  # everyone in them is dead: this takes no time
            self._cgroups = None
        if self._instance is not None:
            self._instance.close()
            self._instance = None

    def _unusable(self, error: OSError) -> BelljarError:
        if descriptors.is_one(error):
            return descriptors.refusal()
        return SandboxFault(f"cannot use {self._settings.runtime_dir}: {error}")

    @property
    def first_environment(self) -> str:
        """The one that programs run in whose caller names none."""
        configured = self._settings.environments
        return "default" if "default" in configured else next(iter(configured), "default")

    def _first_pool(self) -> str:
        name = self.first_environment
        if self._first_language == "python":
            return name
        return f"{name}{_WITH_TOOLCHAINS}{self._machine().root_of(self._first_language)}"

    def _find_missing_walls(self) -> list[str]:
        """What cannot be had here and was not given up, each with how to get it."""
        given_up = self._settings.jail.without_walls
        missing = []
        if "landlock" not in given_up and not self._landlock_version:
            missing.append("wall 'landlock' is missing: use Linux 5.13 or newer with landlock enabled (lsm=landlock,…)")
        if "uid" not in given_up and os.geteuid() != 0:
            missing.append(
                "wall 'uid' is missing: guests would have your own uid on the host; run as root (--without-wall uid)"
            )
        if "cgroup" not in given_up:
            try:
                self._open_cgroups()
            except CgroupsUnavailable as error:
                missing.append(f"wall 'cgroup' is missing: {error} (--without-wall cgroup)")
        return missing

    def _open_cgroups(self) -> None:
        assert self._instance is not None
        cgroups = Cgroups(find_hierarchies(), f"{self._settings.jail.cgroup_parent}/{self._instance.name}")
        self._instance.note([directory for _, directory in cgroups.directories])
        cgroups.open()
        self._cgroups = cgroups

    def run(self, execution: Execution, watcher: Watcher | None = None) -> Coroutine[Any, Any, Evidence]:
        """Run one program."""
        if execution.language == "python":
            return self._run_patiently(execution, watcher)
        return self._run_command(execution, watcher)

    async def _run_command(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        if self._commands is None:
            self._commands = self._make_commands()
        try:
            return await self._commands.run(execution, watcher)
        finally:
            asyncio.get_running_loop().call_soon(self._standbys.refill)

    def _make_commands(self) -> Commands:
        from belljar.backends.local.languages.steps import (
            Commands,  # when first needed: most sandboxes run Python alone
        )

        return Commands(self._settings, self._run_patiently)

    async def _run_patiently(
        self, execution: Execution, watcher: Watcher | None, command: Command | None = None
    ) -> Evidence:
        """A guest that is lost with its zygote is replaced, unseen by the caller, a few times."""
        for attempt in range(_ATTEMPTS):
            try:
                return await self._run(execution, watcher, command)
            except ZygoteDied as error:
                if watcher is not None or attempt == _ATTEMPTS - 1:
                    self._faults += 1
                    raise
                _log.warning("running again on a new guest: %s", error)
            except JailSetupFailed:
                self._faults += 1
                raise
            except OSError as error:
                raise _named(error) from error
        raise AssertionError("unreachable")

    def _run(
        self, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Coroutine[Any, Any, Evidence]:
        pool = None if command is not None else self._pools.current.get(execution.environment)
        if pool is None or pool.is_lost:
            return self._run_somewhere(execution, watcher, command)
        return self._run_in(pool, execution, watcher, None)  # as nearly always

    async def _run_somewhere(self, execution: Execution, watcher: Watcher | None, command: Command | None) -> Evidence:
        name = execution.environment if command is None else f"{execution.environment}{_WITH_TOOLCHAINS}{command.root}"
        pool = await self._pools.enter(name)
        if command is not None and not pool.shows(command.places):  # its toolchain was installed after the pool
            if self._pools.current.get(name) is pool:  # else somebody else has found out, too
                self._pools.leave(pool)
                self._standbys.leave(pool)
            pool = await self._pools.enter(name)
        if command is None or command.standby is None or execution.network:  # what waits has no way out
            return await self._run_in(pool, execution, watcher, command)
        seen = await self._standbys.run(pool, command.standby, execution, watcher)
        return seen or await self._run_in(pool, execution, watcher, command)

    async def _run_in(
        self, pool: LocalPool, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Evidence:
        kind = pool.choose_kind(execution) if command is None else BARE
        limits = execution.limits
        guest = pool.lease_ready(kind, limits) or await pool.lease(kind, limits)
        if command is not None or not _is_plain(execution):
            return await self._run_accompanied(pool, guest, execution, watcher, command)
        try:
            run = Run(guest, execution, watcher, self._settings.request, pool, kind == PACKAGES)
            evidence = await run.play()
            pool.succeeded()
            return evidence
        finally:
            self._let_go(pool, guest)

    async def _run_accompanied(
        self, pool: LocalPool, guest: Guest, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Evidence:
        """In a guest that is released in the end, with whatever few programs ask for."""
        companions = HostFeatures()
        source = policy.PROGRAM_NAME
        network: NetworkAccess | None = None
        try:
            if execution.network:
                network = await self._open_network(pool, guest.jail.jail_init)
                execution = dataclasses.replace(execution, env=network.equip(execution.env))
            self._accompany(execution, pool, watcher, companions)
            extras = companions.extras()
            if command is not None:
                extras.append(command.extra)
                source = command.source
            shows = guest.kind == PACKAGES
            run = Run(guest, execution, watcher, self._settings.request, pool, shows, extras, source)
            evidence = await run.play()
            pool.succeeded()
            evidence = companions.complete(evidence)
            return evidence if network is None else await network.finish(evidence)
        except ZygoteDied as error:
            if network is not None:
                await network.forbid_repeating(error)
            companions.forbid_repeating(error)
            raise
        finally:
            companions.close()
            if network is not None:
                network.drop()
                guest.jail.kill()  # whatever was sent in there, nobody else comes to live in it
            self._let_go(pool, guest)

    def _accompany(
        self, execution: Execution, pool: LocalPool, watcher: Watcher | None, companions: HostFeatures
    ) -> None:
        """Whatever few programs ask for; what is in `companions` will be closed, however this ends."""
        if execution.coverage is not None:
            from belljar.backends.local.features.coverage import Measurement  # few programs are measured

            companions.append(Measurement(execution, execution.coverage, pool.environment))
        if execution.tools:
            from belljar.backends.local.features.tools import GuestTools  # few programs call tools

            companions.append(GuestTools(self._tools, execution, self._settings.tools, watcher))
        if execution.restrict is not None:
            companions.append(PolicyReport(execution, execution.restrict))

    async def _open_network(self, pool: LocalPool, place: int) -> NetworkAccess:
        if self._ways_out is None:
            from belljar.backends.local.features.network import NetworkAccessPoint  # few programs have a network

            assert self._instance is not None
            self._ways_out = NetworkAccessPoint(self._settings.network, self._instance.uid_base, self._landlock_version)
        return await self._ways_out.open(pool, place)

    def _let_go(self, pool: LocalPool, guest: Guest) -> None:
        if pool.busy_guests:
            _release(pool, guest)
        else:  # nobody else waits for a guest: after the answer is on its way
            pool.loop.call_soon(_release, pool, guest)

    async def open_session(self, order: SessionOrder) -> LiveSession:
        """Start an interpreter that stays. A guest that is lost before it begins is replaced, a few times."""
        for attempt in range(_ATTEMPTS):
            try:
                return await self._open_session(order)
            except ZygoteDied:
                if attempt == _ATTEMPTS - 1:
                    self._faults += 1
                    raise
            except OSError as error:
                raise _named(error) from error
        raise AssertionError("unreachable")

    async def _open_session(self, order: SessionOrder) -> LiveSession:
        return await self._open_session_in(await self._pools.enter(order.environment), order)

    async def _open_session_in(self, pool: LocalPool, order: SessionOrder) -> LiveSession:
        foreign = None
        if order.language != "python":
            order, foreign = await asyncio.to_thread(self._translate, order)
        if not any(name.lower() == "ipython" for name, _ in pool.environment.packages):
            raise NotOffered(
                f"environment {order.environment!r} has no IPython, which sessions need; use another",
                field="environment",
            )
        # The kernel's own processor limit is for a process's life, and a session's cells have clocks of their own.
        allowed = dataclasses.replace(order.limits, cpu_seconds=_UNLIMITED_SECONDS)
        session, jail_init = await self._seat(pool, order, allowed)
        session.foreign = foreign
        try:
            if order.tools:
                from belljar.backends.local.features.tools import SessionTools

                session.tools = SessionTools(self._tools, order.tools, self._settings.tools)
            if order.network:
                session.network = await self._open_network(pool, jail_init)
                order = dataclasses.replace(order, env=session.network.equip(order.env))
        except BaseException:
            await session.close()
            raise
        await session.start(order, () if session.tools is None else (session.tools.extra,))
        if session.tools is not None:
            session.tools.sent()
        pool.succeeded()
        asyncio.get_running_loop().call_soon(pool.refill, SESSION)
        return session

    async def _seat(self, pool: LocalPool, order: SessionOrder, allowed: Limits) -> tuple[LocalSession, int]:
        """A session that has not begun yet, in a guest that is allowed so much; and who holds its jail's namespaces."""
        guest = await pool.lease(SESSION, allowed)
        process = FirstProcess(pool, guest)
        owner = pool.owner_of(guest.jail.jail_slot)
        return LocalSession(process, order.limits, self._settings.request, owner), guest.jail.jail_init

    def _translate(self, order: SessionOrder) -> tuple[SessionOrder, Mapping[str, Any]]:
        """For another language: with room for its interpreter, and what to start."""
        from belljar.languages import load_one
        from belljar.languages.sessions import LANGUAGES, order_of

        if order.language not in LANGUAGES:
            offered = ", ".join(("python", *LANGUAGES))
            raise NotOffered(f"there are no sessions in {order.language}; choose one of: {offered}", field="language")
        if order.tools:
            raise NotOffered("tools can be called from Python sessions only; leave them out", field="tools")
        toolchain = load_one(order.language)
        limits = dataclasses.replace(
            order.limits,
            memory_bytes=order.limits.memory_bytes + toolchain.runtime_mb * MIB,
            processes=order.limits.processes + toolchain.runtime_threads,
        )
        return dataclasses.replace(order, limits=limits), order_of(order.language, self._machine())

    def _machine(self) -> InstalledToolchains:
        """Where the toolchains are."""
        from belljar.languages import installed_toolchains

        return installed_toolchains(self._settings)

    async def _make_pool(self, name: str) -> LocalPool:
        """Open the one of an environment, with the toolchains of a root where `name` says so."""
        base, has_toolchains, root = name.partition(_WITH_TOOLCHAINS)
        environment = await ensure_unless_cancelled(self._environments, base, self._progress)
        assert self._instance is not None
        walls: Mapping[str, Any] = {
            "as_root": os.geteuid() == 0,
            "changes_uid": os.geteuid() == 0,
            "uid_base": self._instance.uid_base,
            "landlock_version": self._landlock_version,
            "cgroup": self._cgroups is not None,
            "own_devices": os.geteuid() == 0 and mounts.can_make_devices(),
        }
        settings = self._settings
        shown = await asyncio.to_thread(lambda: self._machine().bound_places(root)) if has_toolchains else {}
        pool = LocalPool(
            environment, self._jail_slots, settings.pool, settings.default_limits, walls, shown, system=root
        )
        try:
            await pool.open()
        except BaseException:
            await pool.close()
            raise
        return pool

    def _maintain(self) -> None:
        self._pools.let_go_of_unused()
        self._standbys.let_go_of_unused()
        self._maintenance = asyncio.get_running_loop().call_later(_MAINTENANCE_SECONDS, self._maintain)

    async def close(self) -> None:
        """End every process, remove every cgroup, give the instance's slot back."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        await self._pools.stop_opening()
        await self._standbys.close()
        await self._pools.close()
        if self._ways_out is not None:
            await self._ways_out.close()
            self._ways_out = None
        if hasattr(self, "_jail_slots"):
            self._jail_slots.close()
        self._give_back()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        totals: dict[str, Any] = {"backend": self.name, "sandbox_faults": self._faults, **self._standbys.facts()}
        if self._ways_out is not None:
            totals |= self._ways_out.facts()
        for pool in self._pools.current.values():
            for key, value in pool.facts().items():
                totals[key] = totals.get(key, 0) + value
        return totals if self._commands is None else {**totals, **self._commands.facts()}


def _named(error: OSError) -> BelljarError:
    """An error of this process's own, by which no program could be run."""
    return descriptors.refusal() if descriptors.is_one(error) else SandboxFault(str(error))


def _release(pool: LocalPool, guest: Guest) -> None:
    pool.release(guest)
    pool.refill(guest.kind)


def _is_plain(execution: Execution) -> bool:
    """Whether it needs nothing beside a guest."""
    return not (
        execution.network or execution.coverage is not None or execution.tools or execution.restrict is not None
    )
