"""Programs that are not Python: a compile step where the language has one, then the program, each in its own jail.

Equal sources that arrive together are compiled once: the first starts it, the others wait for the same result. The
step belongs to all who wait, so it ends early only when the last of them has gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from belljar.aio import cancel_and_wait
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.languages.compile_cache import CompileCache, Compiled, key_of
from belljar.backends.local.languages.standby import PACKET_BYTES_MAX, Standby, build_packet
from belljar.contract.backend import Watcher
from belljar.contract.errors import InvalidExecution, TooLarge
from belljar.contract.execution import MIB, Compilation, Evidence, Execution, Limits, Status, classify
from belljar.languages import Toolchain, installed_toolchains, load_one
from belljar.languages.toolchain import Plan
from belljar.languages.toolchains import InstalledToolchains
from belljar.settings import Settings

_CHECK_SECONDS = 10.0  # for a toolchain to say whether it can parse a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a guest becomes, instead of a Python program."""

    source: str  # the name of the program's file
    root: str  # which system it is part of; empty: this one
    extra: GuestFeature
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what its pool must show, and where that is
    standby: Standby | None = None  # what may have been started ahead for it


class RunStep(Protocol):
    """Runs one step to its end, in a jail of its own."""

    def __call__(self, execution: Execution, watcher: Watcher | None, command: Command) -> Awaitable[Evidence]: ...


@dataclass(slots=True)
class _Flight:
    """A compile step that is under way."""

    task: asyncio.Task[Compiled]
    waiting: int = 0


class Commands:
    """Runs programs of every language but Python. Bound to one event loop."""

    def __init__(self, settings: Settings, run_step: RunStep, machine: InstalledToolchains | None = None) -> None:
        self._settings = settings
        self._run_step = run_step
        self._machine = machine or installed_toolchains(settings)
        self._cache = CompileCache(settings.state_dir.resolve() / "compiled", settings.languages.compile_cache_bytes)
        self._flights: dict[str, _Flight] = {}
        self._ready: dict[tuple[str, str], asyncio.Task[None]] = {}  # by name and fingerprint
        self._places: dict[str, Mapping[str, str]] = {}  # what a toolchain needs to see, beside what every jail shows
        self._in_background: set[asyncio.Task[None]] = set()

    async def run(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        """Compile if need be, and run.

        Raises:
            ToolchainMissing: its toolchain is not on this machine.
        """
        toolchain = load_one(execution.language)
        await self._make_ready(toolchain)
        paths = tuple(file.path for file in execution.files)
        plan = toolchain.plan(execution.code, paths, execution.limits.memory_bytes)
        if toolchain.compile is None:
            seen = await self._run(toolchain, plan, execution, watcher, None)
            return await self._report_syntax_error(toolchain, plan, execution, seen)
        compiled, compilation = await self._compile(toolchain, plan, execution)
        if compilation.status is not Status.OK:
            if watcher is not None:
                watcher.started()
            return Evidence(compilation=compilation)
        seen = await self._run(toolchain, plan, execution, watcher, compiled)
        artifacts = tuple(file for file in seen.artifacts if not compiled.is_unchanged(file))
        return dataclasses.replace(seen, compilation=compilation, artifacts=artifacts)

    async def _make_ready(self, toolchain: Toolchain) -> None:
        name = toolchain.name
        if not self._machine.is_available(name):
            raise self._machine.explain_missing(name)
        key = name, self._machine.fingerprint(name)
        if key not in self._ready:
            self._ready[key] = asyncio.create_task(asyncio.to_thread(self._get_ready, toolchain))
            if toolchain.prepare is not None and toolchain.prepare.optional:
                work = asyncio.create_task(asyncio.to_thread(self._machine.prepare_quietly, name))
                self._in_background.add(work)
                work.add_done_callback(self._in_background.discard)
        try:
            await asyncio.shield(self._ready[key])
        except Exception:
            self._ready.pop(key, None)  # the next one may fare better
            raise

    def _get_ready(self, toolchain: Toolchain) -> None:
        self._machine.make_ready(toolchain.name)
        self._places[toolchain.name] = self._machine.places_read_by(toolchain)

    # ---- the run step

    async def _run(
        self,
        toolchain: Toolchain,
        plan: Plan,
        execution: Execution,
        watcher: Watcher | None,
        compiled: Compiled | None,
    ) -> Evidence:
        argv = [*plan.fill(toolchain.run), *execution.args]
        order: dict[str, Any] = {"argv": argv}
        descriptors: tuple[int, ...] = ()
        if compiled is not None:
            if compiled.size_bytes > execution.limits.disk_bytes:
                raise InvalidExecution(
                    f"limits.disk_mb is less than the {compiled.size_bytes / MIB:.1f} MiB of the compiled program; "
                    "ask for more",
                    field="limits.disk_mb",
                )
            order |= {"compiled": compiled.files, "start": compiled.start}
            descriptors = (compiled.descriptor,)
        limits = dataclasses.replace(
            execution.limits,
            memory_bytes=execution.limits.memory_bytes + toolchain.runtime_mb * MIB,
            processes=execution.limits.processes + toolchain.runtime_threads,
        )
        step = dataclasses.replace(
            execution, env={**_environ(toolchain.env, plan), **execution.env}, args=(), limits=limits
        )
        command = self._command(toolchain, plan, order, descriptors)
        standby = self._standby(toolchain, plan, dataclasses.replace(step, args=execution.args), compiled)
        if standby is not None and execution.limits.memory_bytes != self._settings.default_limits.memory_bytes:
            standby = dataclasses.replace(standby, is_usual=False)
        return await self._run_step(step, watcher, dataclasses.replace(command, standby=standby))

    def _standby(
        self, toolchain: Toolchain, plan: Plan, execution: Execution, compiled: Compiled | None
    ) -> Standby | None:
        """What can wait for programs like this one, with this program; None: it has to be started when it comes."""
        env = _environ(toolchain.env, plan)
        if not toolchain.standby or execution.env != env:  # a runtime reads its environment before it waits
            return None
        given = [(plan.source, execution.code.encode(), False)]
        given += [(file.path, file.content, False) for file in execution.files]
        size_bytes = sum(len(content) for _, content, _ in given) + (compiled.size_bytes if compiled else 0)
        if size_bytes > PACKET_BYTES_MAX:
            return None
        if compiled is not None:
            given += [(path, content, True) for path, content in compiled.read()]
        packet = build_packet(given, execution.args, bool(execution.stdin))
        if len(packet) > PACKET_BYTES_MAX:
            return None
        argv = plan.fill(toolchain.standby)
        return self._start_ahead(toolchain, argv, env, execution.limits, packet=packet)

    def _start_ahead(
        self, toolchain: Toolchain, argv: list[str], env: Mapping[str, str], limits: Limits, **given: Any
    ) -> Standby:
        path = self._machine.find_command(toolchain, argv[0])
        return Standby(argv=tuple(argv), path=path, env=tuple(env.items()), limits=limits, **given)

    def _command(
        self, toolchain: Toolchain, plan: Plan, order: Mapping[str, Any], descriptors: tuple[int, ...] = ()
    ) -> Command:
        path = self._machine.find_command(toolchain, order["argv"][0])
        return Command(
            source=plan.source,
            root=self._machine.root_of(toolchain.name),
            extra=GuestFeature("command", {**order, "path": path}, descriptors),
            places=self._places[toolchain.name],
        )

    async def _report_syntax_error(
        self, toolchain: Toolchain, plan: Plan, execution: Execution, seen: Evidence
    ) -> Evidence:
        """A run that failed is a failed compilation if the toolchain says that it cannot read the program."""
        check = toolchain.check
        if check is None or classify(seen) is not Status.FAILED:
            return seen
        text = seen.stderr.decode("utf-8", "replace")
        if check.exit_code is not None and seen.exit_code != check.exit_code:
            return seen
        if check.pattern is not None and not check.pattern.search(text):
            return seen
        compilation = Compilation(
            status=Status.FAILED, exit_code=seen.exit_code, stdout="", stderr=text, wall_seconds=seen.wall_seconds
        )
        if check.argv:
            step = _bare_step(execution, toolchain, plan, _check_limits(execution.limits))
            asked = await self._run_step(step, None, self._command(toolchain, plan, {"argv": plan.fill(check.argv)}))
            if classify(asked) is not Status.FAILED:
                return seen
            compilation = _compilation_of(asked)
        return dataclasses.replace(seen, compilation=compilation)

    # ---- the compile step

    async def _compile(self, toolchain: Toolchain, plan: Plan, execution: Execution) -> tuple[Compiled, Compilation]:
        began = time.monotonic()
        key = self._key(toolchain, plan, execution)
        found = self._cache.find(key)
        if found is not None:
            seconds = time.monotonic() - began
            return found, dataclasses.replace(found.compilation, was_cached=True, wall_seconds=seconds)
        flight = self._flights.get(key)
        was_first = flight is None
        if flight is None:
            task = asyncio.create_task(self._compile_now(toolchain, plan, execution, key))
            flight = self._flights[key] = _Flight(task)
            landed = flight
            task.add_done_callback(lambda _: self._forget(key, landed))
        compiled = await self._wait_for(key, flight)
        seconds = time.monotonic() - began
        return compiled, dataclasses.replace(compiled.compilation, was_cached=not was_first, wall_seconds=seconds)

    async def _wait_for(self, key: str, flight: _Flight) -> Compiled:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._forget(key, flight)  # whoever comes now must not wait for what is being ended
                await cancel_and_wait(flight.task)  # we are cancelled already; being cancelled again changes nothing

    def _forget(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            flight.task.exception()  # read, or asyncio complains that nobody did: all who waited may have left

    async def _compile_now(self, toolchain: Toolchain, plan: Plan, execution: Execution, key: str) -> Compiled:
        assert toolchain.compile is not None
        compile_step = toolchain.compile
        limits = _within(execution.compile_limits or compile_step.limits, self._settings.ceiling_limits)
        argv = toolchain.plan(execution.code, plan.sources[1:], limits.memory_bytes).fill(compile_step.argv)
        step = dataclasses.replace(_bare_step(execution, toolchain, plan, limits), artifacts=compile_step.outputs)
        env = {**step.env, **_environ(compile_step.env, plan)}
        if toolchain.prepare is not None and toolchain.prepare.env and self._machine.is_prepared(toolchain.name):
            env |= _environ(toolchain.prepare.env, plan)
        step = dataclasses.replace(step, env=env)
        command = self._command(toolchain, plan, {"argv": argv})
        if compile_step.standby and not execution.files:  # it sees no file beside the source
            ahead = self._start_ahead(
                toolchain, plan.fill(compile_step.standby), step.env, limits, becomes=compile_step.outputs[0]
            )
            command = dataclasses.replace(command, standby=ahead)
        try:
            seen = await self._run_step(step, None, command)
        except TooLarge as error:
            seen = _too_large(error.message)
        if seen.note:
            seen = _too_large(seen.note.strip())
        compilation = _compilation_of(seen)
        files = seen.artifacts if compilation.status is Status.OK else ()
        if compilation.status is Status.OK and not files:
            complaint = f"{compilation.stderr}the compiler left nothing to run\n"
            compilation = dataclasses.replace(compilation, status=Status.FAILED, stderr=complaint)
        # What a limit or a signal ended may go better next time.
        cache = self._cache if compilation.status in (Status.OK, Status.FAILED) else _NO_CACHE
        return await asyncio.to_thread(cache.keep, key, compilation, files)

    def _key(self, toolchain: Toolchain, plan: Plan, execution: Execution) -> str:
        assert toolchain.compile is not None
        caller = "" if self._settings.languages.compile_cache_shared else f"caller {execution.caller}"
        pieces = [
            self._machine.fingerprint(toolchain.name).encode(),
            caller.encode(),
            execution.environment.encode(),
            repr(execution.compile_limits).encode(),
            "\0".join(plan.fill(toolchain.compile.argv)).encode(),
            plan.source.encode(),
            execution.code.encode(),
        ]
        for file in execution.files:
            pieces += [file.path.encode(), file.content]
        return key_of(pieces)

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring."""
        return self._cache.facts()


_NO_CACHE = CompileCache(None, 0)  # type: ignore[arg-type]  # never looks at a directory


def _environ(env: Mapping[str, str], plan: Plan) -> dict[str, str]:
    return {"TMPDIR": "/tmp", **dict(zip(env, plan.fill(tuple(env.values())), strict=True))}


def _bare_step(execution: Execution, toolchain: Toolchain, plan: Plan, limits: Limits) -> Execution:
    """The program and its files, and nothing that only its run is given."""
    return dataclasses.replace(
        execution,
        stdin=b"",
        args=(),
        env=_environ(toolchain.env, plan),
        artifacts=(),
        limits=limits,
        network=False,
        tools=(),
    )


def _check_limits(limits: Limits) -> Limits:
    return dataclasses.replace(
        limits, wall_seconds=_CHECK_SECONDS, cpu_seconds=_CHECK_SECONDS, processes=max(64, limits.processes)
    )


def _within(limits: Limits, ceiling: Limits) -> Limits:
    names = [each.name for each in dataclasses.fields(Limits)]
    return Limits(**{name: min(getattr(limits, name), getattr(ceiling, name)) for name in names})


def _too_large(reason: str) -> Evidence:
    return Evidence(exit_code=1, stderr=f"the compiled program is too large: {reason}\n".encode())


def _compilation_of(seen: Evidence) -> Compilation:
    return Compilation(
        status=classify(seen),
        exit_code=seen.exit_code,
        stdout=seen.stdout.decode("utf-8", "replace"),
        stderr=seen.stderr.decode("utf-8", "replace"),
        wall_seconds=seen.wall_seconds,
    )
