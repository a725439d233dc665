"""A pool whose kernel is not ours: a container under gVisor, or anything else that shares no kernel with the host.

No descriptor reaches into it, so everything travels as frames over the container's standard input and output, to the
steward in there (`inside/gvisor/agent.py`). The host keeps a clock of its own over each run, and ends the whole
container when the steward does not keep to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from belljar.backends.container.container import Contents, checked
from belljar.backends.container.engine_api import EngineApi
from belljar.backends.container.pool import describe
from belljar.backends.gvisor.relay import DescriptorRelay
from belljar.backends.gvisor.session import GvisorSession, RelayedProcess
from belljar.backends.local.features.feature import GuestFeature
from belljar.backends.local.pool.view import import_pattern
from belljar.backends.local.pool.warden_handle import WARMING
from belljar.backends.local.pool.zygotes import BARE, PACKAGES
from belljar.backends.local.run import artifacts
from belljar.backends.local.run.artifacts import Collected
from belljar.backends.local.run.displays import PictureReader
from belljar.backends.local.run.run import program_packet
from belljar.backends.local.session.session import LocalSession
from belljar.contract.backend import Watcher
from belljar.contract.errors import (
    EnvironmentBroken,
    InvalidExecution,
    JailSetupFailed,
    SandboxFault,
    UnsafePath,
    ZygoteDied,
)
from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.files import File, check_relative_path
from belljar.environments import Environment
from belljar.inside.zygote.protocol import FRAME
from belljar.jail import policy, workdir
from belljar.settings import RequestSettings

_log = logging.getLogger("belljar.container")
_TEXT_BYTES_MAX = 8 << 20
_PATIENCE_SECONDS = 30.0  # over a run's own time, before the container is taken to be stuck
_STDOUT = 1
_OWN_BYTES = 64 << 20  # of an interpreter and what it has imported, which is not the program's
_THREADS_BYTES, _RESERVED_BYTES = 4 << 30, 1 << 40
#: What comes of reading a frame that no steward of ours has written.
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
_Heard: TypeAlias = "asyncio.Queue[tuple[dict[str, Any], bytes]]"


class GvisorPool:
    """One container with a steward in it. Used like a `LocalPool` by the sandbox that owns it."""

    def __init__(
        self, daemon: EngineApi, image: str, name: str, bounds: RequestSettings, default_limits: Limits
    ) -> None:
        self.image = image
        self.name = name
        self.is_lost = False
        self.contents: Contents
        self.environment: Environment
        self._daemon = daemon
        self._bounds = bounds
        self._default_allowance = _allowance(default_limits)
        self._id = ""
        self._runs: dict[int, Callable[[dict[str, Any], bytes], None]] = {}  # who hears what of whom
        self._next_run = 0
        self._ended = 0
        self._listening: asyncio.Task[None] | None = None
        self._greeted: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._heavy_pattern: re.Pattern[str] | None = None

    # ---- opening and closing

    async def open(self, options: Mapping[str, Any], start_seconds: float) -> None:
        """Create the container, attach to it, start it, and wait for its steward.

        Raises:
            SandboxFault: it did not come up; nothing is left of it.
        """
        try:
            self._id = await self._daemon.create(options)
            self._reader, self._writer = await self._daemon.attach(self._id)
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            await self._daemon.begin(self._id)
            try:
                async with asyncio.timeout(start_seconds):
                    said = await asyncio.shield(self._greeted)
            except TimeoutError as error:
                raise EnvironmentBroken(
                    f"a container of {self.image!r} did not call in: {await self._said()}"
                ) from error
            self.contents = checked(self.image, said)
            self.environment = describe(self.name, self.contents)
            self._greet()
        except BaseException:
            await asyncio.shield(self.close())
            raise

    def _greet(self) -> None:
        contents = self.contents
        warm = [name for name in contents.warm if name != "IPython"]
        if warm:
            self._heavy_pattern = import_pattern({name.split(".")[0] for name in warm})
        self._send(
            {
                "do": "greet",
                "python": contents.python,
                "environ": contents.environ(),
                "warming": {**WARMING, "BELLJAR_ZYGOTE": "belljar.inside.gvisor.zygote"},
                "imports": warm,
                "allowance": self._default_allowance,
            }
        )

    async def close(self) -> None:
        """End the container and have it removed."""
        self._lose("the container is being closed")
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None
        if hasattr(self, "_writer"):
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._id:
            container, self._id = self._id, ""
            try:
                await self._daemon.remove(container)
            except SandboxFault as error:
                _log.warning("container %s is left to the next start: %s", container[:12], error.message)
        if not self._greeted.done():
            self._greeted.cancel()

    # ---- what a sandbox asks of a pool

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in it."""
        return not self._runs

    def refill(self, kind: str) -> None:
        """The steward keeps its own guests ready."""

    def let_go_of_unused(self) -> None:
        """The container is kept as it is."""

    def facts(self) -> dict[str, int]:
        """Numbers for monitoring."""
        return {"guests": len(self._runs), "runs_ended": self._ended}

    async def run(
        self,
        execution: Execution,
        watcher: Watcher | None,
        extras: Sequence[GuestFeature] = (),
        source: str = policy.PROGRAM_NAME,
    ) -> Evidence:
        """Run one program to its end.

        Raises:
            ZygoteDied: the container is gone; the same request may be tried on another.
        """
        run: _Heard = asyncio.Queue()
        number = self._enrol(lambda message, blob: run.put_nowait((message, blob)))
        asked = _Asked(number, execution, self._bounds, watcher, DescriptorRelay(number, self._send))
        try:
            is_python = execution.language == "python"
            is_heavy = is_python and self._heavy_pattern and self._heavy_pattern.search(execution.code)
            self._begin(asked, PACKAGES if is_heavy else BARE, extras, source)
            try:
                return await self._follow(asked, run)
            except (*NONSENSE, UnsafePath) as error:
                self._lose("it says what cannot be read")
                raise ZygoteDied("the container says what cannot be read") from error
            except asyncio.CancelledError:
                await asyncio.shield(self._kill_and_wait(number, run))
                raise
        finally:
            asked.relay.close()
            self._send({"do": "done", "run": number})
            self._forget(number)

    def _enrol(self, receive: Callable[[dict[str, Any], bytes], None]) -> int:
        self._check_not_lost()
        self._next_run += 1
        self._runs[self._next_run] = receive
        return self._next_run

    def _forget(self, number: int) -> None:
        del self._runs[number]
        self._ended += 1

    def seat(self, limits: Limits, allowed: Limits) -> LocalSession:
        """A session that has not begun yet, in a guest that is allowed so much."""
        self._check_not_lost()
        process = RelayedProcess(self._next_run + 1, self._send, self, lambda: self._forget(process.number))
        self._enrol(process.receive)
        order = {"do": "open", "run": process.number, **process.numbers}
        memory_bytes = limits.memory_bytes + _OWN_BYTES
        self._send({**order, "memory_bytes": memory_bytes, "allowance": _allowance(allowed)})
        return GvisorSession(process, limits, self._bounds, None)

    def succeeded(self) -> None:
        """Guests can be made; the steward knows."""

    def _check_not_lost(self) -> None:
        if self.is_lost:
            raise ZygoteDied("the container is gone; the next request starts a new one")

    def unstick(self) -> None:
        """Its steward does not do what it is told: the container must go."""
        self._lose("it did not end a program")

    def _begin(self, asked: _Asked, kind: str, extras: Sequence[GuestFeature], source: str) -> None:
        execution = asked.execution
        shows = kind == PACKAGES
        packet = program_packet(execution, shows, extras, source)
        kinds, lent = asked.relay.lend([descriptor for extra in extras for descriptor in extra.descriptors])
        message = {
            "do": "run",
            "run": asked.number,
            "kind": kind,
            "shows": shows,
            "packet_bytes": len(packet),
            "lent_bytes": len(lent),
            "kinds": kinds,
            "allowance": _allowance(execution.limits, has_runtime=execution.language != "python"),
            "memory_bytes": execution.limits.memory_bytes + _OWN_BYTES,
            "default_allowance": self._default_allowance,
            "wall_seconds": execution.limits.wall_seconds,
            "output_bytes": execution.limits.output_bytes,
            "flood_bytes": self._bounds.flood_bytes,
        }
        self._send(message, packet + lent + execution.stdin)

    async def _follow(self, asked: _Asked, run: _Heard) -> Evidence:
        loop = asyncio.get_running_loop()
        asked.began = time.monotonic()
        last = loop.time() + asked.execution.limits.wall_seconds + _PATIENCE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(last):
                    message, blob = await run.get()
            except TimeoutError as error:
                _log.error("the steward of %s does not keep time; ending its container", self.name)
                self._lose("it was stuck")
                raise ZygoteDied("the container was stuck") from error
            if "lost" in message:
                raise ZygoteDied(f"the container is gone: {message['lost']}")
            if "failed" in message:
                step, reason = str(message["failed"]), str(message.get("reason"))
                if step == "files":
                    raise InvalidExecution(f"the files do not fit: {reason}; ask for more disk_mb", field="files")
                raise JailSetupFailed(step, reason)
            if asked.watcher is not None and asked.watcher.is_behind:
                await asked.watcher.caught_up()
            asked.receive(message, blob)
            if "ended" in message:
                wall_seconds = time.monotonic() - asked.began
                found = await self._fetch(asked, message["ended"], run)
                return asked.evidence(message["ended"], found, wall_seconds)

    async def _fetch(self, asked: _Asked, ended: dict[str, Any], run: _Heard) -> Collected:
        """The files that the caller wants, of those there are; the steward knows no globs."""
        if not asked.execution.artifacts:
            return Collected()
        told = [path for path in ended["paths"] if isinstance(path, str)]
        wanted = artifacts.wanted(asked.execution.artifacts)
        paths, trouble = await asyncio.to_thread(workdir.pick, told, wanted)
        count, most = len(paths), self._bounds.file_count
        order = {"do": "fetch", "run": asked.number, "paths": paths[:most], "bytes_max": self._bounds.files_bytes}
        self._send(order)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                message, blob = await run.get()
        except TimeoutError as error:
            raise ZygoteDied("the container does not give its files away") from error
        if "files" not in message:
            raise ZygoteDied("the container went away with its files")
        found, start = [], 0
        for path, size in message["files"]:
            check_relative_path(path)
            found.append(File(path=path, content=blob[start : start + int(size)]))
            start += int(size)
        note = ""
        if trouble is not None:
            note = artifacts.note_of(str(trouble))
        elif count > most:
            note = artifacts.note_of(f"{count} files match, at most {most} can be returned")
        elif message["is_over"]:
            note = artifacts.note_of("more bytes than can be returned")
        return Collected(tuple(found), note)

    async def _kill_and_wait(self, number: int, run: _Heard) -> None:
        self._send({"do": "kill", "run": number})
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not self.is_lost:
                    message, _ = await run.get()
                    if message.keys() & {"ended", "failed", "lost"}:
                        return
        except TimeoutError:
            self._lose("it did not end a program")

    # ---- the stream

    def _send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if self.is_lost:
            return
        text = json.dumps(message, separators=(",", ":")).encode()
        self._writer.write(b"".join((FRAME.pack(len(text), len(blob)), text, blob)))

    async def _listen(self) -> None:
        """Undo the engine's framing, then ours. Ends with the container."""
        inbox, said = bytearray(), bytearray()
        try:
            while True:
                head = await self._reader.readexactly(8)
                chunk = await self._reader.readexactly(int.from_bytes(head[4:], "big"))
                if head[0] != _STDOUT:
                    said += chunk
                    del said[:-4096]
                    continue
                inbox += chunk
                self._take_frames(inbox)
        except (asyncio.IncompleteReadError, OSError, *NONSENSE) as error:
            detail = said.decode("utf-8", "replace").strip() or str(error)
            if not self.is_lost:
                _log.error("the container of %s has ended: %s", self.name, detail)
            self._lose(detail)

    def _take_frames(self, inbox: bytearray) -> None:
        while len(inbox) >= FRAME.size:
            text_bytes, blob_bytes = FRAME.unpack_from(inbox)
            if text_bytes > _TEXT_BYTES_MAX or blob_bytes > self._bounds.files_bytes + (1 << 20):
                raise ValueError("a frame is larger than any may be")
            end = FRAME.size + text_bytes + blob_bytes
            if len(inbox) < end:
                return
            message = json.loads(bytes(inbox[FRAME.size : FRAME.size + text_bytes]))
            blob = bytes(inbox[FRAME.size + text_bytes : end])
            del inbox[:end]
            if "ready" in message:
                if not self._greeted.done():
                    self._greeted.set_result(dict(message["ready"]))
            elif message["run"] in self._runs:
                self._runs[message["run"]](message, blob)

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        for receive in list(self._runs.values()):
            receive({"lost": reason}, b"")
        if not self._greeted.done():
            self._greeted.set_exception(EnvironmentBroken(f"a container of {self.image!r} ended: {reason}"))
            self._greeted.exception()  # whoever waits raises it; nobody may

    async def _said(self) -> str:
        try:
            return await self._daemon.said(self._id) or "it said nothing"
        except SandboxFault as error:
            return error.message


class _Asked:
    """One run while it goes on: what has been heard of it so far."""

    def __init__(
        self,
        number: int,
        execution: Execution,
        bounds: RequestSettings,
        watcher: Watcher | None,
        relay: DescriptorRelay,
    ) -> None:
        self.number = number
        self.relay = relay
        self.execution = execution
        self.watcher = watcher
        self.began = 0.0
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._seen = {"stdout": 0, "stderr": 0}
        self._pictures = PictureReader(bounds)

    def receive(self, message: dict[str, Any], blob: bytes) -> None:
        """Output, pictures, and the start."""
        watcher = self.watcher
        if "stream" in message:
            stream = str(message["stream"])
            fitting = blob[: max(0, self.execution.limits.output_bytes - len(self._kept[stream]))]
            self._kept[stream] += fitting
            self._seen[stream] += int(message["bytes"])
            if fitting and watcher is not None:
                watcher.wrote(stream, fitting)
        elif "line" in message:
            self.relay.receive(message, blob)
        elif "pictures" in message:
            for picture in self._pictures.feed(blob):
                if watcher is not None:
                    watcher.displayed(picture)
        elif "started" in message and watcher is not None:
            watcher.started()

    def evidence(self, ended: dict[str, Any], found: Collected, wall_seconds: float) -> Evidence:
        """What was seen, in the words of the contract."""
        if ended["status"] is None:
            raise ZygoteDied("the program's pool ended without a word")
        code = os.waitstatus_to_exitcode(int(ended["status"]))
        note = found.note_below(self._kept["stderr"])
        if note and self.watcher is not None:
            self.watcher.wrote("stderr", note.encode())
        cpu_seconds = int(ended["cpu_microseconds"]) / 1e6
        return Evidence(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            deadline_passed=bool(ended["deadline_passed"]),
            cpu_exhausted=code == -signal.SIGKILL and cpu_seconds > self.execution.limits.cpu_seconds,
            oom_kills=int(bool(ended.get("out_of_memory"))),
            output_flooded=bool(ended["flooded"]),
            stdout=bytes(self._kept["stdout"]),
            stderr=bytes(self._kept["stderr"]),
            stdout_cut=self._seen["stdout"] > len(self._kept["stdout"]),
            stderr_cut=self._seen["stderr"] > len(self._kept["stderr"]),
            displays=tuple(self._pictures.complete),
            artifacts=found.files,
            note=note,
            wall_seconds=wall_seconds,
            cpu_seconds=cpu_seconds,
            memory_peak_bytes=int(ended["peak_bytes"]),
        )


def _allowance(limits: Limits, *, has_runtime: bool = False) -> list[int]:
    """What is fixed at the fork: disk, CPU, processes, address space.

    Threads reserve more of the last than they use, runtimes of other languages far more. What is used is watched.
    """
    address_bytes = _RESERVED_BYTES if has_runtime else limits.memory_bytes + _THREADS_BYTES
    return [limits.disk_bytes, max(1, math.ceil(limits.cpu_seconds)), limits.processes, address_bytes]
