"""The warm processes of one pool, one for each kind in use: started when first wanted, replaced, let go.

A kind is what a zygote has imported: 'bare' has the standard library's basics, 'heavy' the environment's warm
imports, 'shell' those and IPython: its guests are sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.setns_gate import Gate
from belljar.backends.local.pool.warden_handle import (
    OutOfDescriptors,
    StartFailed,
    WardenHandle,
    ZygoteHandle,
    ZygoteListener,
)
from belljar.contract.errors import JailSetupFailed
from belljar.settings import PoolSettings

_log = logging.getLogger("belljar.local")
BARE, PACKAGES, SESSION = "bare", "packages", "session"
_WARM_SECONDS = 120.0  # for imports, however slow the disk

Recipe = tuple[str, Mapping[str, Any]]  # the interpreter as the guests' root has it, and what the zygote is told first


class Zygotes:
    """By kind. All methods run on the loop's thread."""

    def __init__(
        self,
        warden: WardenHandle,
        listener: ZygoteListener,
        pool: PoolSettings,
        recipe: Callable[[str], Recipe],
        on_reaped: Callable[[ZygoteHandle], None],
    ) -> None:
        """`recipe` says how one of a kind is started; `on_reaped` hears of each that the warden has buried."""
        self.replaced = 0
        self._warden = warden
        self._listener = listener
        self._pool_settings = pool
        self._recipe = recipe
        self._on_reaped = on_reaped
        self._loop = asyncio.get_running_loop()
        self._current: dict[str, ZygoteHandle] = {}
        self._retired: set[ZygoteHandle] = set()  # asked to leave, not gone yet
        self._starting: dict[str, asyncio.Task[ZygoteHandle]] = {}
        self._used_at: dict[str, float] = {}
        self._gates: set[Gate] = set()  # of zygotes of sessions, be they gone: their sessions live on
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[ZygoteHandle]:
        """Those that guests are forked from, and that are there."""
        return iter([zygote for zygote in self._current.values() if not zygote.is_lost])

    def find(self, kind: str) -> ZygoteHandle | None:
        """The one of this kind, if it is there."""
        current = self._current.get(kind)
        return None if current is None or current.is_lost else current

    async def get(self, kind: str) -> ZygoteHandle:
        """The one of this kind, started if need be; callers at the same time share one start.

        Raises:
            JailSetupFailed: it does not come up. Overloaded: there are no descriptors for it.
        """
        current = self.find(kind)
        if current is not None:
            return current
        if kind not in self._starting:
            self._start_in_background(kind)
        return await asyncio.shield(self._starting[kind])

    def _start_in_background(self, kind: str) -> None:
        task = self._starting[kind] = self._loop.create_task(self._start(kind))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever awaits it raises

    async def _start(self, kind: str) -> ZygoteHandle:
        fresh = ZygoteHandle(kind, self._listener)
        try:
            await fresh.start(self._warden, *self._recipe(kind), _WARM_SECONDS)
        except OutOfDescriptors as error:
            raise descriptors.refusal() from error
        except StartFailed as error:
            raise JailSetupFailed("zygote", str(error)) from error
        finally:
            self._starting.pop(kind, None)
            if fresh.gate is not None:
                self._gates = {gate for gate in (*self._gates, fresh.gate) if not gate.is_closed}
        self._warden.watch(fresh.pid, lambda *_: self._on_reaped(fresh))
        before = self.find(kind)
        self._current[kind] = fresh
        if before is not None:
            self._retire(before)
        self.note_use(kind)
        return fresh

    def _retire(self, zygote: ZygoteHandle) -> None:
        self._retired.add(zygote)
        zygote.retire()

    def note_use(self, kind: str) -> None:
        """Somebody wants a guest of this kind."""
        self._used_at[kind] = self._loop.time()

    def note_fork(self, zygote: ZygoteHandle) -> None:
        """It has forked; after so many it is replaced."""
        if zygote.forks >= self._pool_settings.zygote_forks:
            self._rotate(zygote)

    def rotate_old(self) -> None:
        """Replace those that have lived long enough."""
        for zygote in list(self._current.values()):
            if zygote.forks and self._loop.time() - zygote.started_at >= self._pool_settings.zygote_seconds:
                self._rotate(zygote)

    def _rotate(self, zygote: ZygoteHandle) -> None:
        """Have it replaced, unless that is under way."""
        kind = zygote.kind
        if self._current.get(kind) is zygote and kind not in self._starting and not self._is_closing:
            self._start_in_background(kind)

    def lose(self, zygote: ZygoteHandle) -> bool:
        """It has died: whether it was one that guests are forked from, and is replaced."""
        zygote.close()
        self._retired.discard(zygote)
        if self._current.get(zygote.kind) is not zygote:  # one that was retired
            return False
        self.replaced += 1
        del self._current[zygote.kind]
        if not self._is_closing and zygote.kind not in self._starting:
            self._start_in_background(zygote.kind)
        return True

    def let_go_of_unused(self) -> list[str]:
        """Have those leave that only some programs need, when nobody has asked for a while; which kinds those are."""
        gone = []
        for kind in (PACKAGES, SESSION):
            idle_seconds = self._loop.time() - self._used_at.get(kind, 0.0)
            if kind in self._current and idle_seconds > self._pool_settings.idle_seconds and kind not in self._starting:
                self._retire(self._current.pop(kind))
                gone.append(kind)
        return gone

    async def stop_starting(self) -> None:
        """Start no more, and end those that are being started."""
        self._is_closing = True
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)

    def close(self) -> None:
        """End them all; their guests live on until the warden ends."""
        self._is_closing = True
        for gate in self._gates:
            gate.close()
        for zygote in (*self._current.values(), *self._retired):
            zygote.close()
