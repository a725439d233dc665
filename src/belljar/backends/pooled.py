"""One sandbox above all kinds of pools: it opens a pool per environment, and runs programs and sessions in them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from belljar.backends.local.pool import descriptors
from belljar.contract.backend import Watcher
from belljar.contract.errors import JailSetupFailed, NotOffered, Overloaded, SandboxFault, ZygoteDied
from belljar.contract.execution import MIB, Evidence, Execution
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.languages.standby import StandbyPool
    from belljar.backends.local.languages.steps import Command, OtherLanguages
    from belljar.languages.toolchains import Toolchains

_log = logging.getLogger("belljar.pools")
_MAINTENANCE_SECONDS = 15.0
_ATTEMPTS = 4
TOOLCHAINS_OF = "@"  # in a pool's name: between the environment and the root of the toolchains that it shows
_T = TypeVar("_T")


class GuestPool(Protocol):
    """Warm guests of one environment. Bound to the event loop that opens it."""

    used_at: float  # when a program or session was last started, by the loop's clock; only if it is disposable

    @property
    def is_lost(self) -> bool:
        """Whether its processes have died, so that it runs nothing any more and only has to be closed."""

    @property
    def is_idle(self) -> bool:
        """Whether no program and no session runs in it."""

    @property
    def is_disposable(self) -> bool:
        """Whether it was made for one request, so that it may be closed when it is idle."""

    async def open(self) -> None:
        """Start its first processes. Raises SandboxFault if they do not start; it must be closed all the same."""

    def run(
        self, execution: Execution, watcher: Watcher | None = None, command: Command | None = None
    ) -> Coroutine[Any, Any, Evidence]:
        """Run one program: in Python, or as `command`. Raises ZygoteDied if it may be tried in another guest."""

    async def open_session(self, order: SessionOrder, interpreter: Mapping[str, Any] | None = None) -> LiveSession:
        """Start an interpreter that stays, beside Python's that of another language."""

    def shows(self, places: Mapping[str, str]) -> bool:
        """Whether its guests see all of these places of the host."""

    def warm_up(self) -> None:
        """Make guests ahead of the first program."""

    def maintain(self) -> None:
        """Called every few seconds: let go of what was unused for a while."""

    def retire(self) -> None:
        """Called when no more programs come; those that run go on."""

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring, which are added up."""

    async def close(self) -> None:
        """End every process, whatever runs there."""


class PoolSource(ABC):
    """Makes the pools of a sandbox, and owns what they share."""

    name: str
    standbys: StandbyPool | None = None  # commands that are started ahead of programs
    is_fresh_per_run = False  # every run has a pool of its own
    is_fresh_per_session = False
    pools_max: int | None = None  # disposable pools are closed to stay below it
    has_toolchain_pools = False  # commands run in pools of their own, named `environment@root`
    environments: Mapping[str, str] = {}  # by name; a language's name stands for it unless a request names another

    @abstractmethod
    async def open(self) -> None:
        """Get ready to make pools. Raises SandboxFault or OSError if that fails; it must be closed all the same."""

    @abstractmethod
    def first_pool(self) -> str:
        """The name of the pool that is opened with the sandbox; empty: none is."""

    @abstractmethod
    def toolchains(self) -> Toolchains:
        """The toolchains that commands come from."""

    def check_name(self, name: str) -> None:
        """Raise what `make` would raise for a name that no pool can have; needs nothing and takes no time."""
        return

    @abstractmethod
    async def make(self, name: str) -> GuestPool:
        """A pool that is not open yet."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what the pools shared; all of them are closed."""


class GuestPools:
    """The pools of a sandbox by name, each opened once; programs and sessions are tried again when a pool fails."""

    def __init__(self, source: PoolSource, idle_seconds: float) -> None:
        self.current: dict[str, GuestPool] = {}  # some may be lost: `enter` replaces them
        self.replaced = 0
        self.faults = 0
        self._source = source
        self._idle_seconds = idle_seconds
        self._reusable = {} if source.is_fresh_per_run else self.current
        self._left: list[GuestPool] = []  # closed when nothing runs in them any more
        self._opening: dict[str, asyncio.Task[GuestPool]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    # ---- programs and sessions

    def run(
        self, execution: Execution, watcher: Watcher | None, command: Command | None = None
    ) -> Coroutine[Any, Any, Evidence]:
        """Run one program: in Python, or as `command`."""
        return self._try(self._start, watcher is None, execution, watcher, command)

    def open_session(
        self, order: SessionOrder, interpreter: Mapping[str, Any] | None
    ) -> Coroutine[Any, Any, LiveSession]:
        """Start an interpreter that stays."""
        return self._try(self._open_session, True, order, interpreter)

    async def _try(self, start: Callable[..., Awaitable[_T]], may_repeat: bool, *request: Any) -> _T:
        """Replace a guest that is lost with its zygote, unseen by the caller, a few times."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await start(*request)
            except ZygoteDied as error:
                if not may_repeat or attempt == _ATTEMPTS:
                    self.faults += 1
                    raise
                _log.warning("running again on a new guest: %s", error)
            except JailSetupFailed:
                self.faults += 1
                raise
            except OSError as error:  # of this process's own, by which no program could be run
                raise descriptors.refusal() if descriptors.is_one(error) else SandboxFault(str(error)) from error
        raise AssertionError("unreachable")

    def _start(
        self, execution: Execution, watcher: Watcher | None, command: Command | None
    ) -> Coroutine[Any, Any, Evidence]:
        pool = self._reusable.get(execution.environment) if command is None else None
        if pool is None or pool.is_lost:
            return self._run_somewhere(execution, watcher, command)
        return pool.run(execution, watcher)  # as nearly always

    async def _run_somewhere(self, execution: Execution, watcher: Watcher | None, command: Command | None) -> Evidence:
        name = execution.environment
        if command is not None and self._source.has_toolchain_pools:
            name += TOOLCHAINS_OF + command.root
        if self._source.is_fresh_per_run:
            pool = await self._make(name)
            try:
                return await pool.run(execution, watcher, command)
            finally:
                await asyncio.shield(pool.close())
        pool = await self.enter(name)
        if command is not None and not pool.shows(command.places):  # its toolchain was installed after the pool
            if self.current.get(name) is pool:  # else another request has replaced it
                self.leave(pool)
            pool = await self.enter(name)
        return await pool.run(execution, watcher, command)

    async def _open_session(self, order: SessionOrder, interpreter: Mapping[str, Any] | None) -> LiveSession:
        if not self._source.is_fresh_per_session:
            pool = await self.enter(order.environment)
            return await pool.open_session(order, interpreter)
        pool = await self._make(order.environment)
        try:
            session = await pool.open_session(order, interpreter)
        except BaseException:
            await asyncio.shield(pool.close())
            raise
        self.leave(pool)  # closed soon after the last session in it
        return session

    # ---- pools

    async def enter(self, name: str) -> GuestPool:
        """The pool of that name, opened if it is not; concurrent callers share one opening."""
        pool = self.current.get(name)
        if pool is not None and not pool.is_lost:
            return pool
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.get_running_loop().create_task(self._open(name))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _open(self, name: str) -> GuestPool:
        try:
            lost = self.current.pop(name, None)
            if lost is not None:
                self.replaced += 1
                await lost.close()
            self._source.check_name(name)  # first: a name that stands for nothing must not cost another its pool
            await self._make_room()
            pool = self.current[name] = await self._make(name)
            pool.warm_up()
            return pool
        finally:
            self._opening.pop(name, None)

    async def _make(self, name: str) -> GuestPool:
        pool = await self._source.make(name)
        try:
            await pool.open()
        except BaseException:
            await asyncio.shield(pool.close())
            raise
        return pool

    async def _make_room(self) -> None:
        """Close an idle pool that was made for a request, if there are as many pools as there may be."""
        most = self._source.pools_max
        if most is None or sum(not pool.is_lost for pool in self.current.values()) < most:
            return
        for pool in self.current.values():
            if pool.is_disposable and pool.is_idle:
                self.leave(pool)
                await asyncio.shield(self._close(pool))
                return
        raise Overloaded(f"all {most} containers are in use; try again later")

    def leave(self, pool: GuestPool) -> None:
        """Let no more programs into a pool; it is closed in the background, once nothing runs in it."""
        for name in [name for name, each in self.current.items() if each is pool]:
            del self.current[name]
        pool.retire()
        self._left.append(pool)

    def maintain(self) -> None:
        """Let go of what was unused for a while. Called every few seconds."""
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        for pool in list(self.current.values()):
            pool.maintain()
            if pool.is_disposable and pool.is_idle and pool.used_at < oldest:
                self.leave(pool)
        for pool in [each for each in self._left if each.is_idle or each.is_lost]:
            self._close(pool)

    def _close(self, pool: GuestPool) -> asyncio.Task[None]:
        self._left.remove(pool)
        task = asyncio.get_running_loop().create_task(pool.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)
        return task

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a pool could not be closed: %s", error, exc_info=error)

    async def stop_opening(self) -> None:
        """Cancel what is not open yet."""
        for task in self._opening.values():
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))

    async def close(self) -> None:
        """End all pools, whatever runs there."""
        await self.stop_opening()
        self._left += self.current.values()
        self.current.clear()
        for pool in list(self._left):
            self._close(pool)
        while self._closing:
            await asyncio.wait(self._closing)

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring, added up over all pools."""
        totals: dict[str, int] = {"sandbox_faults": self.faults}
        for pool in self.current.values():
            for key, value in pool.facts().items():
                totals[key] = totals.get(key, 0) + value
        return totals

    def count(self) -> tuple[int, int]:
        """How many pools have live processes, and how many were replaced."""
        return sum(not pool.is_lost for pool in (*self.current.values(), *self._left)), self.replaced


class PooledSandbox:
    """Runs programs in warm pools. Bound to the event loop that opens it."""

    def __init__(self, settings: Settings, source: PoolSource) -> None:
        self.name = source.name
        self._settings = settings
        self._source = source
        self._environments = source.environments
        self._pools = GuestPools(source, settings.pool.idle_seconds)
        self._languages: OtherLanguages | None = None
        self._maintenance: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Take what the pools need, and open the first one.

        Raises:
            WallMissing: an isolation layer is missing and was not given up.
            SandboxFault: no program can be run here.
        """
        try:
            await self._source.open()
            first = self._source.first_pool()
            if first:
                await self._pools.enter(first)
        except OSError as error:
            await self.close()
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise SandboxFault(f"cannot use {self._settings.runtime_dir}: {error}") from error
        except BaseException:
            await self.close()
            raise
        self._maintain()

    def run(self, execution: Execution, watcher: Watcher | None = None) -> Coroutine[Any, Any, Evidence]:
        """Run one program."""
        if self._environments and execution.environment == "default" and execution.language in self._environments:
            execution = dataclasses.replace(execution, environment=execution.language)
        if execution.language == "python":
            return self._pools.run(execution, watcher)
        return self._run_command(execution, watcher)

    async def _run_command(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        if self._languages is None:
            from belljar.backends.local.languages.steps import OtherLanguages  # most sandboxes run Python alone

            self._languages = OtherLanguages(self._settings, self._pools, self._source.toolchains())
        try:
            return await self._languages.run(execution, watcher)
        finally:
            if self._source.standbys is not None:  # after the answer is on its way
                asyncio.get_running_loop().call_soon(self._source.standbys.refill)

    async def open_session(self, order: SessionOrder) -> LiveSession:
        """Start an interpreter that stays."""
        interpreter = None
        if order.language != "python":
            order, interpreter = await asyncio.to_thread(self._find_interpreter, order)
        return await self._pools.open_session(order, interpreter)

    def _find_interpreter(self, order: SessionOrder) -> tuple[SessionOrder, Mapping[str, Any]]:
        """The order with room for the interpreter of another language, and how to start that."""
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
        return dataclasses.replace(order, limits=limits), order_of(order.language, self._source.toolchains())

    def _maintain(self) -> None:
        self._pools.maintain()
        if self._source.standbys is not None:
            self._source.standbys.let_go_of_unused()
        self._maintenance = asyncio.get_running_loop().call_later(_MAINTENANCE_SECONDS, self._maintain)

    async def close(self) -> None:
        """End every process and give back everything that was taken."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        await self._pools.stop_opening()
        if self._source.standbys is not None:
            await self._source.standbys.close()
        await self._pools.close()
        await self._source.close()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring."""
        facts = {"backend": self.name, **self._source.facts(), **self._pools.facts()}
        return facts if self._languages is None else {**facts, **self._languages.facts()}
