"""A sandbox that distributes plain Python programs over several runner processes.

Running a program (reading its pipes, checking its jail) is half of a server's work for a request, and a single process
does all of it in one thread. A runner process takes over that part: the server only sends an execution and receives the
evidence. Each runner has a complete `LocalSandbox` with its own walls, pools and guests.

The server itself keeps what needs it: sessions, programs that call tools or use the network, other languages. Its own
sandbox has the same walls and becomes warm when the first of these requests arrives.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from belljar.aio import cancel_all
from belljar.backends.local import LocalSandbox, first_environment
from belljar.backends.runners.handle import RunnerHandle, RunnerLost
from belljar.contract.backend import Watcher
from belljar.contract.errors import EnvironmentBroken, SandboxFault
from belljar.contract.execution import Evidence, Execution
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.environments import Environments, ensure_unless_cancelled
from belljar.settings import Settings

_log = logging.getLogger("belljar.runners")
_ATTEMPTS = 4
_CHECKS = 6  # a runner is killed after this many checks without a frame from it


class RunnersSandbox:
    """Runs programs in runner processes. Bound to the event loop that opens it."""

    name = "local"

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        progress: Callable[[str], None],
        own: LocalSandbox,
        count: int,
        patience_seconds: float = 30.0,
    ) -> None:
        """`own` runs what runners cannot. A runner that is silent for `patience_seconds` is replaced."""
        ready_guests = -(-settings.pool.ready_guests // count)
        pool = dataclasses.replace(settings.pool, ready_guests=ready_guests)
        server = dataclasses.replace(settings.server, runners=count)
        self._settings = dataclasses.replace(settings, pool=pool, server=server)
        self._environments = environments
        self._progress = progress
        self._own = own
        self._count = count
        self._patience_seconds = patience_seconds
        self._runners: list[RunnerHandle] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._known: set[str] = set()  # environments that have been built
        self._next_check: asyncio.TimerHandle | None = None
        self._replaced = 0
        self._past: Counter[str] = Counter()  # counts of runners that have ended
        self._is_closing = False

    async def open(self) -> None:
        """Check the walls, build the default environment and start the runners.

        Raises:
            WallMissing: a wall is not available and the operator did not opt out of it.
            SandboxFault: jails do not work on this machine.
        """
        self._is_closing = False
        try:
            await self._own.open()
            await self._build(first_environment(self._settings))
            for _ in range(self._count):
                self._start_one()
            await asyncio.gather(*self._starting)
        except BaseException:
            await self.close()
            raise
        self._check_runners()

    async def _build(self, environment: str) -> None:
        """Build an environment in the server, which can report the progress."""
        await ensure_unless_cancelled(self._environments, environment, self._progress)
        self._known.add(environment)

    def run(self, execution: Execution, watcher: Watcher | None = None) -> Coroutine[Any, Any, Evidence]:
        if execution.language == "python" and not execution.tools and not execution.network:
            return self._run_elsewhere(execution, watcher)
        return self._own.run(execution, watcher)

    async def _run_elsewhere(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        """Run a program in a runner; if the runner dies, try others, unless a watcher may have seen output."""
        if execution.environment not in self._known:
            await self._build(execution.environment)
        for attempt in range(_ATTEMPTS):
            runners = self._runners or await self._wait_for_one()
            runner = runners[0] if len(runners) == 1 else min(runners, key=_load)
            try:
                return await runner.run(execution, watcher)
            except RunnerLost as error:
                if watcher is not None or attempt == _ATTEMPTS - 1 or self._is_closing:
                    self._past["sandbox_faults"] += 1
                    raise
                _log.warning("running again in another runner: %s", error)
            except EnvironmentBroken:
                self._known.discard(execution.environment)
                raise
        raise AssertionError("unreachable")

    async def open_session(self, order: SessionOrder) -> LiveSession:
        """Open a session in the server's own sandbox."""
        return await self._own.open_session(order)

    # ---- the runners

    async def _wait_for_one(self) -> list[RunnerHandle]:
        """Wait until a runner is ready; start one if none is starting."""
        while not self._runners:
            if self._is_closing:
                raise SandboxFault("the sandbox is being closed")
            if not self._starting:
                self._start_one()
            starting = asyncio.wait(list(self._starting), return_when=asyncio.FIRST_COMPLETED)
            for task in (await starting)[0]:
                if not self._runners:
                    task.result()
        return self._runners

    def _start_one(self) -> None:
        task = asyncio.get_running_loop().create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._started)

    async def _start(self) -> None:
        runner = RunnerHandle(self._lost)
        await runner.start(self._settings)
        if not runner.is_lost:
            self._runners.append(runner)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a runner could not be started: %s", error)

    def _lost(self, runner: RunnerHandle) -> None:
        if runner not in self._runners:  # it was closed on purpose, or never became ready
            return
        self._runners.remove(runner)
        self._leave(runner)
        if not self._is_closing:
            _log.error("a runner ended; replacing it")
            self._replaced += 1
            self._past.update(_counts(runner.facts))
            self._start_one()

    def _leave(self, runner: RunnerHandle) -> None:
        task = asyncio.get_running_loop().create_task(runner.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _check_runners(self) -> None:
        """Kill runners that are stuck: each sends a frame every second."""
        for runner in self._runners:
            runner.missed += 1
            if runner.missed > _CHECKS:
                _log.error("a runner does not answer; ending it")
                runner.kill()
        seconds = self._patience_seconds / _CHECKS
        self._next_check = asyncio.get_running_loop().call_later(seconds, self._check_runners)

    async def close(self) -> None:
        """End all programs, sessions and runners."""
        self._is_closing = True
        if self._next_check is not None:
            self._next_check.cancel()
        await cancel_all(self._starting)
        for runner in self._runners:
            self._leave(runner)
        self._runners = []
        while self._leaving:
            await asyncio.wait(self._leaving)
        await self._own.close()

    def facts(self) -> Mapping[str, Any]:
        """Numbers for monitoring: those of the server and of the runners, which are up to a second old."""
        total = Counter(self._past)
        for each in (self._own.facts(), *(runner.facts for runner in self._runners)):
            total.update({name: value for name, value in each.items() if isinstance(value, int)})
        counts = {"runners": len(self._runners), "runners_replaced": self._replaced}
        return {"backend": self.name, **total, **counts}


def _load(runner: RunnerHandle) -> int:
    return runner.load


def _counts(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the facts that are counters."""
    names = ("sandbox_faults", "zygotes_replaced")
    return {name: facts[name] for name in names if name in facts}
