"""The host's end of the socket to the process that goes out: started when first needed, and anew when it has died."""

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
_PACKETS_AT_ONCE = 64  # then others have their turn


class EgressLost(Exception):
    """The process has died, does not answer, or will not; the message carries what it said."""


class Egress:
    """Opens passages for programs. All methods run on the loop's thread; `close` ends everything."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        """`orders` has what `process.main` reads: rules, bounds, uid, landlock_version."""
        self._orders = {**orders, "tells": _log.isEnabledFor(logging.DEBUG)}
        self._current: _Process | None = None
        self._starting = asyncio.Lock()
        self.counts = {"connections": 0, "refused": 0, "sent_bytes": 0, "received_bytes": 0}  # of all programs

    async def open(self, listener: int) -> OpenPassage:
        """A passage behind this listener, of which the caller keeps his copy.

        Raises:
            EgressLost: it could not be.
        """
        async with self._starting:
            if self._current is None or self._current.is_lost:
                await self._start()
        process = self._current
        assert process is not None
        process.passages += 1
        opened = OpenPassage(process, process.passages, self.counts)
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


class OpenPassage:
    """One program's way out, as the host knows it. `close` it, or at least `drop` it."""

    def __init__(self, process: _Process, number: int, totals: dict[str, int]) -> None:
        self.number = number
        self._process = process
        self._totals = totals
        self._closing: asyncio.Task[dict[str, int] | None] | None = None

    def is_closing(self) -> bool:
        """Whether nobody wants it any more."""
        return self._closing is not None

    async def renew(self) -> dict[str, int] | None:
        """What was counted; counting begins anew. None: the process has died, and took the connections with it.

        A process that does not answer is ended, and with it every connection of every program: who cannot be asked
        cannot be told to stop.
        """
        return await (self._ask("renew") if self._closing is None else self.close())

    async def close(self) -> dict[str, int] | None:
        """End every connection of this program, and wait until that is done. What was counted, as `renew` says it."""
        self.drop()
        assert self._closing is not None
        return await asyncio.shield(self._closing)

    def drop(self) -> None:
        """The same, without waiting."""
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
            self._process.lose()  # it is not what we have started any more
            return None
        for name, count in counts.items():
            self._totals[name] += count
        return counts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


class _Process:
    """A running egress process."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self.is_lost = False
        self.passages = 0
        self._loop = asyncio.get_running_loop()
        self._log = LogPipe()
        self._asked: dict[int, asyncio.Future[Any]] = {}
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

    def ask(self, word: str, passage: int, descriptors: Sequence[int] = ()) -> asyncio.Future[Any]:
        """Ask for something; the future has the counts.

        Raises:
            EgressLost: nobody listens.
        """
        if self.is_lost:
            raise EgressLost("the egress process has ended")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._next_ask += 1
        self._asked[self._next_ask] = answer
        message = {"ask": self._next_ask, "word": word, "passage": passage}
        try:
            channel.send(self._socket, message, descriptors=descriptors)
        except (channel.ChannelClosed, BlockingIOError) as error:
            del self._asked[self._next_ask]
            self.lose()
            raise EgressLost("the egress process does not listen") from error
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
                self._hear(message)
            except (LookupError, TypeError):
                self.lose()
                _log.error(
                    "the egress process said what it was not asked; the next program that needs one gets a new one"
                )

    def _hear(self, message: dict[str, Any]) -> None:
        if "tell" in message:
            _log.debug("%s", message["tell"])
        elif "ready" in message:
            if not self.ready.done():
                self.ready.set_result(None)
        else:
            answer = self._asked.pop(message.pop("ask"))
            if answer.done():
                return
            if "failed" in message:
                answer.set_exception(EgressLost(str(message["failed"])[:_REASON_CHARACTERS]))
            else:
                answer.set_result(message)

    def lose(self) -> None:
        """It has ended, or must."""
        if self.is_lost:
            return
        self.is_lost = True
        self._process.kill()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        said = self._log.tail.decode("utf-8", "replace").strip()
        lost = EgressLost(f"the egress process has ended: {said or 'it said nothing'}")
        for answer in (self.ready, *self._asked.values()):
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()  # read, or asyncio complains where nobody waits
        self._asked.clear()
        self._loop.call_soon(self._process.poll)

    async def close(self) -> None:
        """End it and wait until it is gone."""
        self.lose()
        await wait_until_gone(self._process)
        self._process.wait()
        self._log.close()
