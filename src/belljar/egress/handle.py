"""The host's handle on the egress process: starts it when first needed, restarts it when it has died."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar import channel
from belljar.aio import LogPipe, wait_until_gone

_log = logging.getLogger("belljar.egress")
_START = "import sys; sys.path.insert(0, sys.argv[2]); from belljar.egress.process import main; main(int(sys.argv[1]))"
_SOURCES = str(Path(__file__).resolve().parents[2])
_START_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_REASON_CHARACTERS = 500
_PACKETS_AT_ONCE = 64  # then the loop serves others


class EgressLost(Exception):
    """The egress process has died, does not answer, or refused; the message carries its reason."""


class Egress:
    """Opens proxies for programs. All methods run on the loop's thread; `close` ends everything."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        """`orders` has what `process.main` reads: rules, bounds, uid, landlock_version."""
        self._orders = {**orders, "logs": _log.isEnabledFor(logging.DEBUG)}
        self._current: _Process | None = None
        self._starting = asyncio.Lock()
        self.counts = {"connections": 0, "refused": 0, "sent_bytes": 0, "received_bytes": 0}  # of all programs

    async def open(self, listener: int) -> OpenProxy:
        """Start a proxy behind this listener; the caller keeps its own copy of the descriptor.

        Raises:
            EgressLost: the proxy could not be started.
        """
        async with self._starting:
            if self._current is None or self._current.is_lost:
                await self._start()
        process = self._current
        assert process is not None
        process.proxies += 1
        opened = OpenProxy(process, process.proxies, self.counts)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await process.ask("open", opened.number, [listener])
        except TimeoutError as error:
            process.lose()
            opened.drop()
            raise EgressLost("the egress process does not answer") from error
        except BaseException:
            opened.drop()
            raise
        return opened

    async def _start(self) -> None:
        if self._current is not None:
            await self._current.close()
        process = self._current = _Process(self._orders)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await process.ready
        except TimeoutError as error:
            process.lose()
            raise EgressLost("the egress process did not start in time") from error

    async def close(self) -> None:
        """End the process, and with it every connection."""
        if self._current is not None:
            await self._current.close()
            self._current = None


class OpenProxy:
    """The host's handle on one program's proxy. Call `close`, or at least `drop`."""

    def __init__(self, process: _Process, number: int, totals: dict[str, int]) -> None:
        self.number = number
        self._process = process
        self._totals = totals
        self._closing: asyncio.Task[dict[str, int] | None] | None = None

    def is_closing(self) -> bool:
        """Whether `close` or `drop` was called."""
        return self._closing is not None

    async def renew(self) -> dict[str, int] | None:
        """Return the counts and reset them; None if the egress process has died, which ended the connections.

        A process that does not answer is killed, and every connection of every program with it: it could not be
        ordered to stop, either.
        """
        return await (self._ask("renew") if self._closing is None else self.close())

    async def close(self) -> dict[str, int] | None:
        """End every connection of this program, wait until that is done, and return the counts as `renew` does."""
        self.drop()
        assert self._closing is not None
        return await asyncio.shield(self._closing)

    def drop(self) -> None:
        """Start to close, without waiting."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._ask("close"))

    async def _ask(self, word: str) -> dict[str, int] | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                counts: dict[str, int] = await self._process.ask(word, self.number)
        except EgressLost:
            return None
        except TimeoutError:
            self._process.lose()
            return None
        if counts.keys() != self._totals.keys() or not all(map(_is_count, counts.values())):
            self._process.lose()  # this answer is not from our code: the process has been taken over
            return None
        for name, count in counts.items():
            self._totals[name] += count
        return counts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


class _Process:
    def __init__(self, orders: Mapping[str, Any]) -> None:
        self.is_lost = False
        self.proxies = 0
        self._loop = asyncio.get_running_loop()
        self._log = LogPipe()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_ask = 0
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._socket, theirs = channel.pair()
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), _SOURCES],
                stdin=subprocess.DEVNULL,
                stdout=self._log.write,
                stderr=self._log.write,
                env={"LANG": "C.UTF-8", "RES_OPTIONS": "timeout:3 attempts:2"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        self._loop.add_reader(self._socket, self._on_readable)
        channel.send(self._socket, dict(orders))

    def ask(self, word: str, proxy: int, descriptors: Sequence[int] = ()) -> asyncio.Future[Any]:
        """Send a command; the future gets the counts.

        Raises:
            EgressLost: the process has ended or does not read.
        """
        if self.is_lost:
            raise EgressLost("the egress process has ended")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._next_ask += 1
        self._pending[self._next_ask] = answer
        message = {"ask": self._next_ask, "word": word, "proxy": proxy}
        try:
            channel.send(self._socket, message, descriptors=descriptors)
        except (channel.ChannelClosed, BlockingIOError) as error:
            del self._pending[self._next_ask]
            self.lose()
            raise EgressLost("the egress process does not read its commands") from error
        return answer

    def _on_readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            if self.is_lost:
                return
            try:
                message, _, _ = channel.receive(self._socket)
            except BlockingIOError:
                return
            except channel.ChannelClosed:
                self.lose()
                _log.error("the egress process has died; the next program that needs one gets a new one")
                return
            try:
                self._receive(message)
            except (LookupError, TypeError):
                self.lose()
                _log.error(
                    "the egress process sent an unexpected message; the next program that needs one gets a new one"
                )

    def _receive(self, message: dict[str, Any]) -> None:
        if "log" in message:
            _log.debug("%s", message["log"])
        elif "ready" in message:
            if not self.ready.done():
                self.ready.set_result(None)
        else:
            answer = self._pending.pop(message.pop("ask"))
            if answer.done():
                return
            if "failed" in message:
                answer.set_exception(EgressLost(str(message["failed"])[:_REASON_CHARACTERS]))
            else:
                answer.set_result(message)

    def lose(self) -> None:
        """Kill the process if it still runs, and fail everything that waits for it."""
        if self.is_lost:
            return
        self.is_lost = True
        self._process.kill()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        said = self._log.tail.decode("utf-8", "replace").strip()
        lost = EgressLost(f"the egress process has ended: {said or 'it said nothing'}")
        for answer in (self.ready, *self._pending.values()):
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()  # retrieved, so that asyncio does not log it as unhandled
        self._pending.clear()
        self._loop.call_soon(self._process.poll)

    async def close(self) -> None:
        self.lose()
        await wait_until_gone(self._process)
        self._process.wait()
        self._log.close()
