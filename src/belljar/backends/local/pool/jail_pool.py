"""The cells of one world: made when wanted, used again when they are as new, mended or given up when they are not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from belljar.backends.local.pool import descriptors
from belljar.backends.local.pool.jails import CELLS_MAX, Berths, Cell
from belljar.backends.local.pool.warden_handle import (
    OutOfDescriptors,
    StartFailed,
    WardenHandle,
    throw_away,
)
from belljar.contract.errors import JailSetupFailed, Overloaded, ZygoteDied

_log = logging.getLogger("belljar.local")
CELL_SECONDS = 30.0  # for the warden to make one


class CellStock:
    """Every cell of a world; `idle` are those that nobody is in. All methods run on the loop's thread."""

    def __init__(
        self,
        berths: Berths,
        warden: WardenHandle,
        disk_bytes: int,
        has_own_devices: bool,
        on_added: Callable[[], None],
        on_changed: Callable[[Cell], None],
    ) -> None:
        """`disk_bytes` is what the directories of a cell hold; 0: cells have none, each guest makes its own.

        `has_own_devices`: device nodes are made for each cell, else all share those of the host.

        `on_added` hears that a cell has become idle, but not of one that was put back; `on_changed` of each that has
        other descriptors now, or has ended.
        """
        self.disk_bytes = disk_bytes
        self._has_own_devices = has_own_devices
        self.idle: list[Cell] = []
        self._berths = berths
        self._warden = warden
        self._on_added = on_added
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._cells: dict[int, Cell] = {}
        self._being_made = 0
        self._renewals: dict[Cell, asyncio.Future[list[int]]] = {}  # cells that get fresh directories, then are idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._cells)

    async def close(self) -> None:
        """Make no more. Those there are end with their warden."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self) -> None:
        """The warden is gone, and with it every cell."""
        self._is_closed = True
        for cell in list(self._cells.values()):
            cell.lose()

    async def make(self) -> Cell:
        """A new cell, which is the caller's to put back.

        Raises:
            Overloaded: there are as many as there can be, or no descriptors for another.
            JailSetupFailed: it could not be made.
            ZygoteDied: it ended at once.
        """
        berth = self._berths.take()
        if berth is None:
            raise Overloaded(f"all {CELLS_MAX} cells are in use; try again later")
        self._being_made += 1
        try:
            async with asyncio.timeout(CELL_SECONDS):
                pid, made = await self._warden.make_cell(self.disk_bytes, self._has_own_devices)
        except TimeoutError as error:
            self._berths.give_back(berth)
            self._warden.kill()
            raise JailSetupFailed("cell", "the warden does not answer") from error
        except OutOfDescriptors as error:
            self._berths.give_back(berth)
            raise descriptors.refusal() from error
        except (StartFailed, OSError) as error:
            self._berths.give_back(berth)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise JailSetupFailed("cell", str(error)) from error
        except BaseException:
            self._berths.give_back(berth)
            raise
        finally:
            self._being_made -= 1
        try:
            descriptors.keep_reserve(max(made))
            cell = Cell(berth, self._warden, pid, made, self._cell_gone)
        except (OSError, StopIteration) as error:  # it has died meanwhile, or there are no descriptors for it
            throw_away(made, is_process=True)
            self._berths.give_back(berth)
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise ZygoteDied("a cell ended while it was made") from error
        self._cells[cell.number] = cell
        return cell

    def want(self, count: int) -> None:
        """Have as many made as are missing, those not counted that will be idle soon."""
        for _ in range(count - self._being_made - len(self._renewals)):
            task = self._loop.create_task(self._make_idle())
            self._tasks.add(task)
            task.add_done_callback(self._made_idle)

    async def _make_idle(self) -> None:
        with contextlib.suppress(JailSetupFailed, Overloaded):
            self._add(await self.make())

    def _made_idle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it was there too late for whoever wanted it, who makes another

    def _add(self, cell: Cell) -> None:
        self.idle.append(cell)
        self._on_added()

    def put_back(self, cell: Cell) -> None:
        """Nobody has been in it since it was as new."""
        self.idle.append(cell)

    def release(self, cell: Cell, is_empty: bool) -> None:
        """Its run is over, and everything of it has been read. Keep it if it is as new, or can be made so."""
        cell.is_leased = False
        if cell.is_gone:
            self._forget(cell)
        elif not is_empty:
            cell.kill()
        elif cell.is_as_new():
            self.idle.append(cell)
        else:
            self._renew(cell)

    def _renew(self, cell: Cell) -> None:
        """Its guest has left something: if no more than files, have its directories mounted anew."""
        if not cell.is_deserted() or not cell.has_used_dirs() or self._is_closed:
            cell.kill()
            return
        cell.let_go_of_dirs()
        renewal = self._warden.renew(cell.sleeper, self.disk_bytes)
        self._renewals[cell] = renewal
        renewal.add_done_callback(lambda _: self._renewed(cell, renewal))

    def _renewed(self, cell: Cell, renewal: asyncio.Future[list[int]]) -> None:
        """Not a task: nobody can cancel this, so what came is either the cell's or closed."""
        del self._renewals[cell]
        fresh = [] if renewal.exception() else renewal.result()
        if cell.is_gone or cell.is_condemned or not fresh:
            for directory in fresh:
                os.close(directory)
            if not cell.is_gone and not cell.is_condemned:
                _log.warning("the directories of a cell were not mounted anew: %s", renewal.exception())
            cell.kill()
            return
        cell.take_dirs(fresh)
        self._on_changed(cell)
        if cell.is_as_new():
            self._add(cell)
        else:
            cell.kill()

    async def wait_for_renewal(self) -> bool:
        """Whether it was worth waiting: a cell was being mended and none idle, and that is sooner than one is made."""
        if self.idle or not self._renewals:
            return False
        await asyncio.wait(self._renewals.values(), timeout=CELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return True

    def give_up_idle(self) -> None:
        """End every cell that nobody is in."""
        idle, self.idle = self.idle, []
        for cell in idle:
            cell.kill()

    def _cell_gone(self, cell: Cell) -> None:
        self._cells.pop(cell.number, None)
        if cell in self.idle:
            self.idle.remove(cell)
        self._on_changed(cell)
        if not cell.is_leased:  # else its run still reads the cgroup
            self._forget(cell)

    def _forget(self, cell: Cell) -> None:
        cell.close()
        self._berths.give_back(cell.berth)
