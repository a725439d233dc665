"""Programs that are not Python: a compile step where the language has one, then the program, each in its own jail.

Equal sources that arrive together are compiled once: the first request starts the step, the others wait for the same
result. The step belongs to all who wait, so it ends early only when the last of them is cancelled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar.aio import cancel_and_wait
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.languages.compile_cache import CompileCache, Compiled, key_of
from belljar.backends.local.languages.standby import PACKET_BYTES_MAX, Standby, build_packet
from belljar.backends.pooled import GuestPools
from belljar.contract.backend import Watcher
from belljar.contract.errors import InvalidExecution, TooLarge
from belljar.contract.execution import MIB, Compilation, Evidence, Execution, Limits, Status, classify
from belljar.languages import Toolchain, load_one
from belljar.languages.toolchain import Plan
from belljar.languages.toolchains import Toolchains
from belljar.settings import Settings

_CHECK_SECONDS = 10.0  # for a toolchain to say whether it can parse a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a guest executes instead of a Python program."""

    source: str  # the name of the program's file
    root: str  # the system that it is part of; empty: this one
    feature: GuestFeature
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what its pool must show, and where that is
    standby: Standby | None = None  # what may have been started ahead for it


@dataclass(frozen=True, slots=True)
class _Step:
    """One jailed command of a program."""

    execution: Execution
    command: Command


@dataclass(slots=True)
class _Compiling:
    """A compile step that is running, and how many requests wait for it."""

    task: asyncio.Task[Compiled]
    waiting: int = 0


class OtherLanguages:
    """Runs programs of every language but Python. Bound to one event loop."""

    def __init__(self, settings: Settings, pools: GuestPools, toolchains: Toolchains) -> None:
        self._settings = settings
        self._pools = pools
        self._toolchains = toolchains
        self._cache = CompileCache(settings.state_dir.resolve() / "compiled", settings.languages.compile_cache_bytes)
        self._compiling: dict[str, _Compiling] = {}
        self._ready: dict[tuple[str, str], asyncio.Task[None]] = {}  # by name and fingerprint
        self._places: dict[str, Mapping[str, str]] = {}  # what a toolchain needs to see, beside what every jail shows
        self._in_background: set[asyncio.Task[None]] = set()

    async def run(self, execution: Execution, watcher: Watcher | None) -> Evidence:
        """Compile unless that was done before, run, and if that failed ask the toolchain for syntax errors.

        Raises:
            ToolchainMissing: the toolchain of this language is not on this machine.
        """
        toolchain = load_one(execution.language)
        await self._make_ready(toolchain)
        plan = _Plan(self._settings, self._toolchains, self._places[toolchain.name], toolchain, execution)
        if toolchain.compile is None:
            seen = await self._run(plan.run_step(None), watcher)
            return await self._report_syntax_error(plan, seen)
        compiled, compilation = await self._compile(plan)
        if compilation.status is not Status.OK:
            if watcher is not None:
                watcher.started()
            return Evidence(compilation=compilation)
        seen = await self._run(plan.run_step(compiled), watcher)
        artifacts = tuple(file for file in seen.artifacts if not compiled.is_unchanged(file))
        return dataclasses.replace(seen, compilation=compilation, artifacts=artifacts)

    def _run(self, step: _Step, watcher: Watcher | None = None) -> Coroutine[Any, Any, Evidence]:
        return self._pools.run(step.execution, watcher, step.command)

    async def _make_ready(self, toolchain: Toolchain) -> None:
        name = toolchain.name
        self._toolchains.check_available(name)
        key = name, self._toolchains.fingerprint(name)
        if key not in self._ready:
            self._ready[key] = asyncio.create_task(asyncio.to_thread(self._get_ready, toolchain))
            if toolchain.prepare is not None and toolchain.prepare.optional:
                work = asyncio.create_task(asyncio.to_thread(self._toolchains.prepare_quietly, name))
                self._in_background.add(work)
                work.add_done_callback(self._in_background.discard)
        try:
            await asyncio.shield(self._ready[key])
        except Exception:
            self._ready.pop(key, None)  # the next request may succeed
            raise

    def _get_ready(self, toolchain: Toolchain) -> None:
        self._toolchains.make_ready(toolchain.name)
        self._places[toolchain.name] = self._toolchains.places_read_by(toolchain)

    async def _report_syntax_error(self, plan: _Plan, seen: Evidence) -> Evidence:
        """A run that failed is a failed compilation if the toolchain says that it cannot read the program."""
        check = plan.toolchain.check
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
            checked = await self._run(plan.check_step(check.argv))
            if classify(checked) is not Status.FAILED:
                return seen
            compilation = _compilation_of(checked)
        return dataclasses.replace(seen, compilation=compilation)

    # ---- the compile step

    async def _compile(self, plan: _Plan) -> tuple[Compiled, Compilation]:
        began = time.monotonic()
        key = plan.compile_key()
        found = self._cache.find(key)
        if found is not None:
            seconds = time.monotonic() - began
            return found, dataclasses.replace(found.compilation, was_cached=True, wall_seconds=seconds)
        compiling = self._compiling.get(key)
        was_first = compiling is None
        if compiling is None:
            task = asyncio.create_task(self._compile_now(plan, key))
            compiling = started = self._compiling[key] = _Compiling(task)
            task.add_done_callback(lambda _: self._forget(key, started))
        compiled = await self._wait_for(key, compiling)
        seconds = time.monotonic() - began
        return compiled, dataclasses.replace(compiled.compilation, was_cached=not was_first, wall_seconds=seconds)

    async def _wait_for(self, key: str, compiling: _Compiling) -> Compiled:
        compiling.waiting += 1
        try:
            return await asyncio.shield(compiling.task)
        finally:
            compiling.waiting -= 1
            if compiling.waiting == 0 and not compiling.task.done():
                self._forget(key, compiling)  # a request that comes now must not wait for what is being ended
                await cancel_and_wait(compiling.task)  # this request is cancelled already

    def _forget(self, key: str, compiling: _Compiling) -> None:
        if self._compiling.get(key) is compiling:
            del self._compiling[key]
        if compiling.task.done() and not compiling.task.cancelled():
            compiling.task.exception()  # retrieved, or asyncio complains: all who waited may be cancelled

    async def _compile_now(self, plan: _Plan, key: str) -> Compiled:
        try:
            seen = await self._run(plan.compile_step())
        except TooLarge as error:
            seen = _too_large(error.message)
        if seen.note:
            seen = _too_large(seen.note.strip())
        compilation = _compilation_of(seen)
        files = seen.artifacts if compilation.status is Status.OK else ()
        if compilation.status is Status.OK and not files:
            complaint = f"{compilation.stderr}the compiler left nothing to run\n"
            compilation = dataclasses.replace(compilation, status=Status.FAILED, stderr=complaint)
        # What a limit or a signal ended may succeed next time.
        cache = self._cache if compilation.status in (Status.OK, Status.FAILED) else _NO_CACHE
        return await asyncio.to_thread(cache.keep, key, compilation, files)

    def facts(self) -> Mapping[str, int]:
        """Numbers for monitoring."""
        return self._cache.facts()


class _Plan:
    """The steps of one program, as its toolchain describes them."""

    def __init__(
        self,
        settings: Settings,
        toolchains: Toolchains,
        places: Mapping[str, str],
        toolchain: Toolchain,
        execution: Execution,
    ) -> None:
        self.toolchain = toolchain
        self._settings = settings
        self._toolchains = toolchains
        self._places = places
        self._execution = execution
        paths = tuple(file.path for file in execution.files)
        self._words = toolchain.plan(execution.code, paths, execution.limits.memory_bytes)

    def run_step(self, compiled: Compiled | None) -> _Step:
        """The program itself.

        Raises:
            InvalidExecution: the compiled program is larger than the disk that it may use.
        """
        toolchain, execution = self.toolchain, self._execution
        order: dict[str, Any] = {"argv": [*self._words.fill(toolchain.run), *execution.args]}
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
        env = {**_environ(toolchain.env, self._words), **execution.env}
        step = dataclasses.replace(execution, env=env, args=(), limits=limits)
        return _Step(step, self._command(order, descriptors, self._standby(step, compiled)))

    def check_step(self, argv: tuple[str, ...]) -> _Step:
        """Whether the toolchain can read the program."""
        limits = dataclasses.replace(
            self._execution.limits,
            wall_seconds=_CHECK_SECONDS,
            cpu_seconds=_CHECK_SECONDS,
            processes=max(64, self._execution.limits.processes),
        )
        return _Step(self._bare(limits), self._command({"argv": self._words.fill(argv)}))

    def compile_step(self) -> _Step:
        """The compiler, which leaves its outputs as artifacts."""
        toolchain, execution, words = self.toolchain, self._execution, self._words
        assert toolchain.compile is not None
        compile_step = toolchain.compile
        limits = _within(execution.compile_limits or compile_step.limits, self._settings.ceiling_limits)
        argv = toolchain.plan(execution.code, words.sources[1:], limits.memory_bytes).fill(compile_step.argv)
        step = dataclasses.replace(self._bare(limits), artifacts=compile_step.outputs)
        env = {**step.env, **_environ(compile_step.env, words)}
        if toolchain.prepare is not None and toolchain.prepare.env and self._toolchains.is_prepared(toolchain.name):
            env |= _environ(toolchain.prepare.env, words)
        ahead = None
        if compile_step.standby and not execution.files:  # it sees no file beside the source
            ahead = self._start_ahead(words.fill(compile_step.standby), env, limits, becomes=compile_step.outputs[0])
        return _Step(dataclasses.replace(step, env=env), self._command({"argv": argv}, standby=ahead))

    def compile_key(self) -> str:
        """Equal for all programs that compile to the same."""
        toolchain, execution = self.toolchain, self._execution
        assert toolchain.compile is not None
        caller = "" if self._settings.languages.compile_cache_shared else f"caller {execution.caller}"
        pieces = [
            self._toolchains.fingerprint(toolchain.name).encode(),
            caller.encode(),
            execution.environment.encode(),
            repr(execution.compile_limits).encode(),
            "\0".join(self._words.fill(toolchain.compile.argv)).encode(),
            self._words.source.encode(),
            execution.code.encode(),
        ]
        for file in execution.files:
            pieces += [file.path.encode(), file.content]
        return key_of(pieces)

    def _standby(self, step: Execution, compiled: Compiled | None) -> Standby | None:
        """What can wait for programs like this one, with this program; None: it has to be started when it comes."""
        toolchain, execution = self.toolchain, self._execution
        env = _environ(toolchain.env, self._words)
        if not toolchain.standby or step.env != env:  # a runtime reads its environment before it waits
            return None
        given = [(self._words.source, execution.code.encode(), False)]
        given += [(file.path, file.content, False) for file in execution.files]
        size_bytes = sum(len(content) for _, content, _ in given) + (compiled.size_bytes if compiled else 0)
        if size_bytes > PACKET_BYTES_MAX:
            return None
        if compiled is not None:
            given += [(path, content, True) for path, content in compiled.read()]
        packet = build_packet(given, execution.args, bool(execution.stdin))
        if len(packet) > PACKET_BYTES_MAX:
            return None
        is_usual = execution.limits.memory_bytes == self._settings.default_limits.memory_bytes
        argv = self._words.fill(toolchain.standby)
        return self._start_ahead(argv, env, step.limits, packet=packet, is_usual=is_usual)

    def _start_ahead(self, argv: list[str], env: Mapping[str, str], limits: Limits, **given: Any) -> Standby:
        path = self._toolchains.find_command(self.toolchain, argv[0])
        return Standby(argv=tuple(argv), path=path, env=tuple(env.items()), limits=limits, **given)

    def _command(
        self, order: Mapping[str, Any], descriptors: tuple[int, ...] = (), standby: Standby | None = None
    ) -> Command:
        path = self._toolchains.find_command(self.toolchain, order["argv"][0])
        return Command(
            source=self._words.source,
            root=self._toolchains.root_of(self.toolchain.name),
            feature=GuestFeature("command", {**order, "path": path}, descriptors),
            places=self._places,
            standby=standby,
        )

    def _bare(self, limits: Limits) -> Execution:
        """The program and its files, without what only its run is given."""
        return dataclasses.replace(
            self._execution,
            stdin=b"",
            args=(),
            env=_environ(self.toolchain.env, self._words),
            artifacts=(),
            limits=limits,
            network=False,
            tools=(),
        )


_NO_CACHE = CompileCache(Path(), 0)  # never looks at a directory


def _environ(env: Mapping[str, str], plan: Plan) -> dict[str, str]:
    return {"TMPDIR": "/tmp", **dict(zip(env, plan.fill(tuple(env.values())), strict=True))}


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
