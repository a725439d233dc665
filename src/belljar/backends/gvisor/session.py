"""A session inside gVisor: a local session over relayed descriptors.

There is neither a cgroup nor a pidfd, so the memory and CPU of a cell are not counted, and it cannot be branched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from belljar.backends.gvisor.guest import RelayedGuest
from belljar.backends.local.session.cell_run import End
from belljar.backends.local.session.process import SessionProcess
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import CannotBranch, ZygoteDied
from belljar.contract.sessions import LiveSession

_SILENCE_SECONDS = 30.0
_OUTPUT_SECONDS = 1.0  # for the last output to be read, which makes room for the rest


class _Pool(Protocol):
    is_lost: bool

    def unstick(self, guest: RelayedGuest) -> None: ...

    def release(self, guest: RelayedGuest) -> None: ...


class RelayedProcess(SessionProcess):
    """The process of a session in a guest inside gVisor. It has no branches, so it belongs to no family."""

    def __init__(self, pool: _Pool, guest: RelayedGuest) -> None:
        super().__init__()
        self.guest = guest
        self.cgroup = None
        self.channel, self.stdout, self.stderr = guest.channel, guest.stdout, guest.stderr
        self._pool = pool
        guest.ended = lambda status, _: self.ended(status)

    def check_directories(self, directories: list[int]) -> None:
        """The directories stay with the agent, which reads them with the rights of the guest."""

    def was_lost(self) -> bool:
        return self._pool.is_lost

    def kill(self) -> None:
        self.guest.jail.kill()

    async def gone(self) -> None:
        """Wait until everyone in it is dead, and for a moment until their output is in the pipes.

        An agent that does not report the end of a guest is ended with its container.
        """
        await asyncio.wait([self.guest.jail.gone], timeout=_SILENCE_SECONDS)
        if not self.guest.jail.is_gone:
            self._pool.unstick(self.guest)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_SECONDS):
                await self.guest.relay.passed_on.wait()

    async def release(self) -> None:
        self._pool.release(self.guest)


class GvisorSession(LocalSession):
    """An interpreter that stays, in a container with its own kernel."""

    _process: RelayedProcess

    def _receive_first_message(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if len(descriptors) == 3:  # placeholders for its directories; there is no pidfd
            descriptors = [*descriptors, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        super()._receive_first_message(message, descriptors)

    def _judge(self, status: int | None) -> str:
        return "memory" if self._process.guest.jail.cgroup.oom_kills() else super()._judge(status)

    def _describe_end(self, reason: str, status: int | None) -> End:
        return super()._describe_end(reason, status)._replace(oom_kills=int(reason == "memory"))

    def signal_interrupt(self) -> None:
        self._process.guest.interrupt()

    async def branch(self, reseed: bool = True) -> LiveSession:
        """Refuse: a branch needs namespaces that older gVisors do not have."""
        self._check_alive()
        raise CannotBranch("sessions under a kernel of their own cannot be branched")

    async def _on_work_dir(self, work: Callable[..., Any], *args: Any) -> Any:
        self._check_alive()
        try:
            return await self._process.guest.on_work_dir(work, *args)
        except ZygoteDied:
            self._check_alive()  # it has ended meanwhile
            raise
