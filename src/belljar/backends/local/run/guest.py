"""What a run needs of its guest, jail and pool, wherever the guest lives: in a local jail or inside gVisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from belljar import channel

if TYPE_CHECKING:
    from belljar.backends.local.run.artifacts import OnWorkDir
    from belljar.backends.local.run.output import SettleTimer


class Meter(Protocol):
    """Counts and limits memory, CPU and processes of one run or cell: a cgroup, or the agent inside gVisor."""

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the limits."""

    def begin(self) -> None:
        """Count from zero."""

    def usage(self) -> tuple[float, int, int]:
        """CPU seconds, peak memory in bytes, and how many processes were killed for lack of memory."""

    def cpu_seconds(self) -> float: ...

    def memory_peak_bytes(self) -> int: ...

    def oom_kills(self) -> int: ...

    def is_empty(self) -> bool:
        """Whether no process is left in it."""


class RunSlot(Protocol):
    @property
    def cgroup(self) -> Meter | None: ...


class RunJail(Protocol):
    """A jail with one guest in it; `backends/local/pool/jails.py` documents the attributes."""

    is_unread: bool
    is_vacated: bool
    on_memory_event: Callable[[], None] | None

    @property
    def jail_slot(self) -> RunSlot: ...

    @property
    def is_gone(self) -> bool: ...

    @property
    def gone(self) -> asyncio.Future[None]: ...

    def kill(self) -> None: ...

    def was_taken_away(self) -> bool: ...


class RunGuest(Protocol):
    """A guest that waits for its program."""

    ended: Callable[[int | None, float], None] | None

    @property
    def kind(self) -> str: ...

    @property
    def jail(self) -> RunJail: ...

    @property
    def channel(self) -> channel.Peer: ...

    @property
    def stdout(self) -> int: ...

    @property
    def stderr(self) -> int: ...

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None: ...


class RunPool(Protocol):
    """The pool that a guest was taken from. Its guests and slots are of its own types."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def patience(self) -> SettleTimer: ...

    @property
    def busy_guests(self) -> int: ...

    def unstick(self, guest: Any) -> None: ...

    def drop_taken_away(self) -> None: ...

    def open_work_dir(self, guest: Any, directory: int) -> OnWorkDir:
        """What calls a function on the work directory that the guest has sent, with the guest's rights."""
