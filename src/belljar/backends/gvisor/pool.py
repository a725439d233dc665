"""The pool of one image under gVisor, or any other runtime that shares no kernel with the host.

No descriptor reaches into such a container, so everything travels as frames over its standard input and output, to
the agent in it (`inside/gvisor/agent.py`). Runs and sessions are the local ones, over relayed descriptors. The host
keeps its own clock for each of them, and ends the whole container if the agent does not end a guest in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from belljar.backends.container.container import Contents, checked
from belljar.backends.container.engine_api import EngineApi
from belljar.backends.container.pool import check_python, describe
from belljar.backends.gvisor.guest import RelayedGuest, RelayedProcess, RelayedRun
from belljar.backends.local.features.feature import Features, GuestFeature
from belljar.backends.local.pool.view import import_pattern, imports_any
from belljar.backends.local.pool.zygotes import BARE, PACKAGES, SESSION, WARMING
from belljar.backends.local.run import artifacts
from belljar.backends.local.run.output import SettleTimer
from belljar.backends.local.session.session import LocalSession, check_ipython
from belljar.contract.backend import Watcher
from belljar.contract.errors import EnvironmentBroken, NotOffered, SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, Execution, Limits
from belljar.contract.sessions import LiveSession, SessionOrder
from belljar.environments import Environment
from belljar.inside.zygote.protocol import FRAME
from belljar.jail import policy
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.backends.local.languages.steps import Command

_log = logging.getLogger("belljar.container")
_TEXT_BYTES_MAX = 8 << 20
_STDOUT = 1
_UNLIMITED_SECONDS = 1e8
_INTERPRETER_BYTES = 64 << 20  # of an interpreter and its imports, which are not the program's
_THREADS_BYTES, _RESERVED_BYTES = 4 << 30, 1 << 40


class GvisorPool:
    """One container with an agent in it: a `GuestPool`."""

    def __init__(
        self,
        daemon: EngineApi,
        image: str,
        name: str,
        config: Mapping[str, Any],
        settings: Settings,
        features: Features,
        *,
        is_disposable: bool,
    ) -> None:
        """`config` is the body of the engine's create call."""
        self.image = image
        self.name = name
        self.is_lost = False
        self.is_disposable = is_disposable
        self.used_at = asyncio.get_running_loop().time()
        self._config = config
        self._settings = settings.container
        self._features = features
        self.contents: Contents
        self.environment: Environment
        self.loop = asyncio.get_running_loop()
        self.patience = SettleTimer()
        self._daemon = daemon
        self._bounds = settings.request
        self._default_allowance = _allowance(settings.default_limits)
        self._id = ""
        self._guests: dict[int, RelayedGuest] = {}
        self._next_guest = 0
        self._ended = 0
        self._listening: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self._packages_pattern: re.Pattern[str] | None = None

    # ---- opening and closing

    async def open(self) -> None:
        """Create the container, attach to it, start it, and wait for its agent.

        Raises:
            SandboxFault: it did not start; nothing is left of it.
        """
        try:
            self._id = await self._daemon.create(self._config)
            self._reader, self._writer = await self._daemon.attach(self._id)
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            await self._daemon.begin(self._id)
            try:
                async with asyncio.timeout(self._settings.start_seconds):
                    facts = await asyncio.shield(self._ready)
            except TimeoutError as error:
                raise EnvironmentBroken(
                    f"a container of {self.image!r} did not call in: {await self._read_log()}"
                ) from error
            self.contents = checked(self.image, facts)
            self.environment = describe(self.name, self.contents)
            self._greet()
        except BaseException:
            await asyncio.shield(self.close())
            raise

    def _greet(self) -> None:
        contents = self.contents
        warm = [name for name in contents.warm if name != "IPython"]
        if warm:
            self._packages_pattern = import_pattern({name.split(".")[0] for name in warm})
        self._send(
            {
                "do": "greet",
                "python": contents.python,
                "environ": contents.environ(),
                "warming": WARMING,
                "imports": warm,
                "allowance": self._default_allowance,
            }
        )

    async def close(self) -> None:
        """End the container and remove it."""
        self._lose("the container is being closed")
        self.patience.close()
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
        if not self._ready.done():
            self._ready.cancel()

    # ---- guests

    @property
    def is_idle(self) -> bool:
        return not self._guests

    @property
    def busy_guests(self) -> int:
        return len(self._guests)

    def shows(self, places: Mapping[str, str]) -> bool:
        """The image is all that its programs need to see."""
        return True

    def warm_up(self) -> None:
        """The agent keeps its own guests ready."""

    def maintain(self) -> None:
        """The container is kept as it is."""

    def drop_taken_away(self) -> None:
        """Do nothing: nothing outside can end a single guest."""

    def open_work_dir(self, guest: RelayedGuest, directory: int) -> artifacts.OnWorkDir:
        """What has the agent call a function on the work directory, whatever the guest has sent."""
        return guest.on_work_dir

    def retire(self) -> None:
        """No command is started ahead in it."""

    def facts(self) -> dict[str, int]:
        """Numbers for monitoring."""
        return {"guests": len(self._guests), "runs_ended": self._ended}

    async def run(
        self, execution: Execution, watcher: Watcher | None = None, command: Command | None = None
    ) -> Evidence:
        """Run one program: in the image's Python, or as `command`."""
        self.used_at = asyncio.get_running_loop().time()
        if command is None:
            check_python(self.environment)
        if execution.network:
            raise NotOffered(f"network is not offered under {self._settings.runtime}", field="network")
        with self._features.opened(execution, self.environment, watcher) as opened:
            extras = [each.feature for each in opened]
            if command is None:
                evidence = await self._run(execution, watcher, extras, policy.PROGRAM_NAME)
            else:
                evidence = await self._run(execution, watcher, [*extras, command.feature], command.source)
            for each in opened:
                evidence = each.complete(evidence)
            return evidence

    async def _run(
        self, execution: Execution, watcher: Watcher | None, extras: Sequence[GuestFeature], source: str
    ) -> Evidence:
        """Run one program to its end.

        Raises:
            ZygoteDied: the container is gone; the same request may be tried on another.
        """
        is_python, pattern = execution.language == "python", self._packages_pattern
        kind = PACKAGES if is_python and pattern is not None and imports_any(pattern, execution) else BARE
        guest = self._open_guest(kind, execution.limits, _allowance(execution.limits, has_runtime=not is_python))
        try:
            shows = kind == PACKAGES
            return await RelayedRun(guest, execution, watcher, self._bounds, self, shows, extras, source).play()
        finally:
            self.release(guest)

    async def open_session(self, order: SessionOrder, interpreter: Mapping[str, Any] | None = None) -> LiveSession:
        """Start a Python interpreter that stays."""
        self.used_at = asyncio.get_running_loop().time()
        check_ipython(self.environment)
        if order.language != "python":
            raise NotOffered(f"under {self._settings.runtime} there are sessions in Python only", field="language")
        if order.network:
            raise NotOffered(f"network is not offered under {self._settings.runtime}", field="network")
        # The kernel's CPU limit is for the life of a process, and each cell of a session has its own clock.
        allowed = dataclasses.replace(order.limits, cpu_seconds=_UNLIMITED_SECONDS)
        guest = self._open_guest(SESSION, order.limits, _allowance(allowed))
        session = LocalSession(RelayedProcess(self, guest), order.limits, self._bounds)
        try:
            session.tools = self._features.session_tools(order)
        except BaseException:
            await session.close()
            raise
        await session.start(order, None)
        return session

    def _open_guest(self, kind: str, limits: Limits, allowance: list[int]) -> RelayedGuest:
        if self.is_lost:
            raise ZygoteDied("the container is gone; the next request starts a new one")
        self._next_guest += 1
        guest = self._guests[self._next_guest] = RelayedGuest(self._next_guest, kind, self._send)
        memory_bytes = limits.memory_bytes + _INTERPRETER_BYTES
        order = {"do": "open", "run": guest.number, "kind": kind, "allowance": allowance, "memory_bytes": memory_bytes}
        self._send({**order, **guest.numbers})
        return guest

    def release(self, guest: RelayedGuest) -> None:
        """Everyone in it is dead, and everything was read."""
        guest.close()
        del self._guests[guest.number]
        self._ended += 1

    def unstick(self, guest: RelayedGuest) -> None:
        """End the container: its agent has not ended a guest."""
        _log.error("the agent of %s does not report the end of a program; ending its container", self.name)
        self._lose("it did not end a program")

    # ---- the stream

    def _send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if self.is_lost:
            return
        text = json.dumps(message, separators=(",", ":")).encode()
        self._writer.write(b"".join((FRAME.pack(len(text), len(blob)), text, blob)))

    async def _listen(self) -> None:
        """Undo the engine's framing, then ours. Ends with the container."""
        inbox, log = bytearray(), bytearray()
        try:
            while True:
                head = await self._reader.readexactly(8)
                chunk = await self._reader.readexactly(int.from_bytes(head[4:], "big"))
                if head[0] != _STDOUT:
                    log += chunk
                    del log[:-4096]
                    continue
                inbox += chunk
                self._take_frames(inbox)
        except (asyncio.IncompleteReadError, OSError, ValueError, RecursionError) as error:
            detail = log.decode("utf-8", "replace").strip() or str(error)
            if not self.is_lost:
                _log.error("the container of %s has ended: %s", self.name, detail)
            self._lose(detail)

    def _take_frames(self, inbox: bytearray) -> None:
        """Take every whole frame.

        Raises:
            ValueError, RecursionError: the container breaks the protocol.
        """
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
            if not isinstance(message, dict):
                raise ValueError("a frame is not an object")
            facts, number = message.get("ready"), message.get("run")
            if isinstance(facts, dict) and not self._ready.done():
                self._ready.set_result(facts)
            elif isinstance(number, int) and number in self._guests:
                self._guests[number].receive(message, blob)

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        for guest in list(self._guests.values()):
            guest.lose()
        if not self._ready.done():
            self._ready.set_exception(EnvironmentBroken(f"a container of {self.image!r} ended: {reason}"))
            self._ready.exception()  # `open` raises it, unless it is no longer waiting

    async def _read_log(self) -> str:
        try:
            return await self._daemon.said(self._id) or "its log is empty"
        except SandboxFault as error:
            return error.message


def _allowance(limits: Limits, *, has_runtime: bool = False) -> list[int]:
    """Limits that are fixed at the fork: disk, CPU, processes, address space.

    Threads reserve more address space than they use, runtimes of other languages far more. The agent watches use.
    """
    address_bytes = _RESERVED_BYTES if has_runtime else limits.memory_bytes + _THREADS_BYTES
    return [limits.disk_bytes, max(1, math.ceil(limits.cpu_seconds)), limits.processes, address_bytes]
