"""The event loop that `Sandbox` keeps in a thread of its own, and calls into it from any other thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from belljar.contract.errors import CallerError, Draining

if TYPE_CHECKING:
    from belljar.frontends.embedded.sandbox import AsyncSandbox

FORKED = "this sandbox belongs to the process that made it; make a new one after a fork"
CLOSED = "this sandbox is closed; make a new one"

_EXIT_SECONDS = 10.0  # how long an interpreter that exits without `close` waits for programs to be gone

_T = TypeVar("_T")


class Life:
    """An event loop in a thread of its own, and the sandbox that lives on it.

    Never refers to the Sandbox it serves: one that is dropped without `close` must be collected, and end this.
    """

    def __init__(self, box: AsyncSandbox) -> None:
        self.box = box
        self.opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._pid = os.getpid()
        self._grace_seconds = 0.0
        self._begun = threading.Event()
        self._counter = threading.Lock()  # no call may arrive after the last one was looked at
        self._takes_calls = True
        self.thread = threading.Thread(target=self._run, name="belljar", daemon=True)
        self.thread.start()
        self._begun.wait()

    def call(self, work: Coroutine[Any, Any, _T]) -> Call[_T]:
        """Hand `work` to the loop's thread.

        Raises:
            CallerError: the sandbox is closed, or another process's.
        """
        if os.getpid() != self._pid:
            work.close()
            raise CallerError(FORKED)
        call = Call(self, work)
        with self._counter:
            if not self._takes_calls:
                work.close()
                raise CallerError(CLOSED)
            self.loop.call_soon_threadsafe(call.start)
        return call

    def stop(self, grace_seconds: float) -> None:
        """Begin to close; `over` tells when that is done. A second call cuts the grace of the first."""
        self._grace_seconds = grace_seconds
        with contextlib.suppress(RuntimeError):  # the loop is closed: over already
            self.loop.call_soon_threadsafe(self._task.cancel)

    def abandon(self) -> None:
        """End all this for want of an owner. Never waits on its own thread, where the collector may call it."""
        if os.getpid() != self._pid:
            return
        self.stop(grace_seconds=0.0)
        if threading.current_thread() is not self.thread:
            self.thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            pass
        except BaseException as caught:  # noqa: BLE001  the end of this thread: whoever waits for it must hear it
            error = caught
        for future in (self.opened, self.over):
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

    async def _live(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.loop, self._task = asyncio.get_running_loop(), task
        self._begun.set()
        try:
            await self.box.open()
            self.opened.set_result(None)
            await asyncio.Event().wait()  # until `stop` cancels
        except asyncio.CancelledError:
            pass
        finally:
            await self.box.close(self._grace_seconds)
            with self._counter:
                self._takes_calls = False
            await asyncio.sleep(0)  # calls that made it start, and are cancelled with the loop


class Call(Generic[_T]):
    """A coroutine at work on the loop's thread, seen from another."""

    def __init__(self, life: Life, work: Coroutine[Any, Any, _T]) -> None:
        self._life = life
        self._work = work
        self._task: asyncio.Task[_T] | None = None
        self._answer: concurrent.futures.Future[_T] = concurrent.futures.Future()

    @property
    def is_done(self) -> bool:
        """Whether `result` would return at once."""
        return self._answer.done()

    def start(self) -> None:
        """On the loop's thread only."""
        self._task = self._life.loop.create_task(self._work)
        self._task.add_done_callback(self._pass_on)

    def result(self) -> _T:
        """Wait for the answer; an interrupt of this thread first ends the work."""
        try:
            return self._answer.result()
        except BaseException:
            if not self._answer.done():
                self.cancel()
                self.wait()
            raise

    def cancel(self) -> None:
        """End the work soon."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the work with it
            self._life.loop.call_soon_threadsafe(self._cancel_task)

    def wait(self) -> None:
        """Wait for the end of the work, whatever it is; not on the loop's own thread, where it would never come."""
        if threading.current_thread() is not self._life.thread:
            concurrent.futures.wait([self._answer])

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _pass_on(self, task: asyncio.Task[_T]) -> None:
        closed = Draining("the sandbox was closed while this ran or waited")
        error = closed if task.cancelled() else task.exception()
        if error is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())
