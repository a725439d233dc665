"""Callers: the identity behind a request, and what it may use.

A caller is known by its API key where the server requires keys, else by its address. The one client of an MCP server on
standard input and output is a caller, too. Each has limits on requests per minute, and on programs and sessions at a
time.

Memory is counted for all callers together: request bytes as they arrive (not as they are announced), answers until the
client has read them. A caller may hold as much as is still free: a single caller gets half, n callers 1/(n+1) each, so
there is always something left for the next one. A shortage refuses new work and lets running work finish, with one
exception: a program that requests artifacts or a large output waits up to a minute for its memory, and one of them
always gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sized
from typing import Any

from belljar.contract.errors import Overloaded, QuotaExceeded, TooManySessions
from belljar.contract.execution import LIMIT_UNITS, Execution, Limits
from belljar.frontends.access.keys import EVERYTHING, Grants, KeyRing
from belljar.frontends.access.refusals import unauthorized
from belljar.settings import Settings

_ADDRESSES_MAX = 4096
_ANONYMOUS = "anonymous"  # owns all sessions on a server without keys; no key can have this id
SMALL_BYTES = 64 * 1024  # requests up to this size are served as long as anything at all is free
_BUSY_SECONDS = 1.0  # when to retry after too many programs at once: unknown, and this is short
_SESSIONS_SECONDS = 10.0  # … after too many sessions, which live longer than programs
_RETRY_SECONDS = 2.0  # … after a shortage of memory
_SLOT_SECONDS = 60.0  # how long a program that has its slot waits for memory
_FILE_SECONDS = 10.0  # … and a request for a session's file, which is read quickly


class Caller:
    """One key, or one address on a server without keys, and what it uses. Lives as long as the server."""

    held_bytes = 0  # of requests and answers
    answer_bytes = 0  # of these, of answers
    reserved_bytes = 0  # of these, reserved for answers of programs that still run

    def __init__(self, name: str, settings: Settings, grants: Grants = EVERYTHING, owner: str = "") -> None:
        self.name = name
        self.adopt(settings, grants, owner)
        self.running = 0
        self._opening = 0
        self._tokens = float(grants.requests_per_minute or 0)
        self._counted_at = time.monotonic()

    def adopt(self, settings: Settings, grants: Grants, owner: str) -> None:
        """Take over new grants; what runs and what was counted stays."""
        self.grants = grants
        self.owner = owner or self.name  # of this caller's sessions: a key's id, as a later key may have the same name
        self.settings = _lower(settings, grants.limits) if grants.limits else settings

    def count_request(self) -> None:
        """Raises QuotaExceeded if the caller sent too many requests recently."""
        per_minute = self.grants.requests_per_minute
        if per_minute is None:
            return
        now = time.monotonic()
        self._tokens = min(float(per_minute), self._tokens + (now - self._counted_at) * per_minute / 60)
        self._counted_at = now
        if self._tokens < 1:
            seconds = (1 - self._tokens) * 60 / per_minute
            raise QuotaExceeded(
                f"key {self.name!r} may send {per_minute} requests per minute; try again in {seconds:.1f} s",
                retry_after_seconds=seconds,
                requests_per_minute=per_minute,
            )
        self._tokens -= 1

    @contextlib.contextmanager
    def running_up_to(self, wanted: int) -> Iterator[int]:
        """Reserve room for up to `wanted` programs at the same time, and yield how many there is room for.

        Raises:
            QuotaExceeded: there is no room for any.
        """
        at_most = self.grants.max_concurrent
        room = wanted if at_most is None else min(wanted, at_most - self.running)
        if room < 1:
            raise QuotaExceeded(
                f"key {self.name!r} may run {at_most} programs at the same time, and does; wait for one to finish",
                retry_after_seconds=_BUSY_SECONDS,
                max_concurrent=at_most,
            )
        self.running += room
        try:
            yield room
        finally:
            self.running -= room

    @contextlib.contextmanager
    def opening(self, wanted: int, are_open: Callable[[], Sized]) -> Iterator[None]:
        """Reserve room for `wanted` sessions in addition to those that `are_open`, while they are being opened.

        Raises:
            TooManySessions: this key may not have so many.
        """
        at_most = self.grants.max_sessions
        if at_most is not None and len(are_open()) + self._opening + wanted > at_most:
            raise TooManySessions(
                f"key {self.name!r} may have {at_most} sessions at the same time; close one first, or ask the operator",
                retry_after_seconds=_SESSIONS_SECONDS,
                max_sessions=at_most,
            )
        self._opening += wanted
        try:
            yield
        finally:
            self._opening -= wanted


class Callers:
    """Finds the caller of a request: by its key where keys are required, else by its address."""

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._settings = settings
        self._keys = keys
        self._by_name: dict[str, Caller] = {}
        self._by_address: dict[str, Caller] = {}
        host = settings.server.host
        self._needs_key = not (keys.is_empty and (is_loopback(host) or host == "localhost"))
        #: The caller of requests to paths that need no key; it may run nothing.
        self.unidentified = Caller("", settings, Grants(max_concurrent=0, max_sessions=0))

    def identify(self, headers: Mapping[bytes, bytes], address: str) -> Caller:
        """The caller that sent a request with these headers.

        Raises:
            Refusal: the key is missing or unknown.
        """
        if not self._needs_key:
            if self._keys.is_empty:
                return self._by_address.get(address) or self._add_address(address)
            self._needs_key = True  # and it stays so: revoking the last key must not open the server to everyone
        text = _read_key(headers)
        if text is None:
            raise unauthorized(
                "this server needs a key; send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'", key="missing"
            )
        key = self._keys.find(text)
        if key is None:
            raise unauthorized("this key is unknown or was revoked; ask the operator for another", key="unknown")
        caller = self._by_name.get(key.name)
        if caller is None:
            caller = self._by_name[key.name] = Caller(key.name, self._settings, key, key.id)
        elif caller.grants is not key:
            caller.adopt(self._settings, key, key.id)
        return caller

    def find(self, name: str) -> Caller | None:
        """The caller of that name, if it has sent a request."""
        return self._by_name.get(name) or self._by_address.get(name)

    def _add_address(self, address: str) -> Caller:
        if len(self._by_address) >= _ADDRESSES_MAX:
            self._by_address = {each: caller for each, caller in self._by_address.items() if caller.held_bytes}
        caller = self._by_address[address] = Caller(address, self._settings, owner=_ANONYMOUS)
        return caller


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a socket bound to that address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _read_key(headers: Mapping[bytes, bytes]) -> str | None:
    bearer = headers.get(b"authorization")
    if bearer is not None:
        scheme, _, text = bearer.partition(b" ")
        return text.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
    plain = headers.get(b"x-api-key")
    return None if plain is None else plain.strip().decode("latin-1")


def _lower(settings: Settings, limits: Mapping[str, float]) -> Settings:
    """The settings with the ceilings of one key, where those are lower."""
    ceiling = {each.name: getattr(settings.ceiling_limits, each.name) for each in dataclasses.fields(Limits)}
    for name, value in limits.items():
        unit = LIMIT_UNITS[name]
        ceiling[unit.field] = min(ceiling[unit.field], unit.read(value))
    default = {name: min(getattr(settings.default_limits, name), most) for name, most in ceiling.items()}
    return dataclasses.replace(settings, ceiling_limits=Limits(**ceiling), default_limits=Limits(**default))


class MemoryBudget:
    """The memory for requests and answers of all callers: `all_bytes`, and at most `each_bytes` for one request."""

    def __init__(self, each_bytes: int, all_bytes: int) -> None:
        self.each_bytes = each_bytes
        self.all_bytes = all_bytes
        self.free_bytes = all_bytes
        self._waiting: list[asyncio.Future[None]] = []

    def take(self, caller: Caller, size: int, of_request: int) -> None:
        """Count `size` more bytes of a request that has sent `of_request` before.

        Raises:
            Overloaded: too little is left for this caller.
        """
        left = self.free_bytes - size
        has_others = caller.held_bytes > of_request  # the only request of a caller may have all that is free
        if left < 0 or (has_others and of_request + size > SMALL_BYTES and caller.held_bytes + size > left):
            raise self.shortage(caller)
        self.free_bytes = left
        caller.held_bytes += size

    def give_back(self, caller: Caller, size: int) -> None:
        """Undo a `take`."""
        self.free_bytes += size
        caller.held_bytes -= size
        if self._waiting:
            self._wake()

    def keep(self, caller: Caller, size: int) -> None:
        """Count an answer, or room for one. This never fails: the answer exists or will exist anyway."""
        self.free_bytes -= size
        caller.held_bytes += size
        caller.answer_bytes += size

    def let_go(self, caller: Caller, size: int) -> None:
        """Undo a `keep`."""
        caller.answer_bytes -= size
        self.give_back(caller, size)

    def may_run(self, caller: Caller) -> bool:
        """Whether the answers that this caller has not read yet leave room for another."""
        unread = caller.answer_bytes - caller.reserved_bytes
        return unread <= max(SMALL_BYTES, self.free_bytes) and self.free_bytes >= 0

    async def wait_to_answer(
        self, caller: Caller, size: int, seconds: float = _FILE_SECONDS, is_alone: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until there is room for an answer of that size in addition to what the caller holds, or `is_alone`.

        Raises:
            Overloaded: there was no room for `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (self._may_answer(caller, size) or is_alone()):
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            raise self.shortage(caller) from None

    def _may_answer(self, caller: Caller, size: int) -> bool:
        held = caller.answer_bytes
        return (held <= SMALL_BYTES and size <= self.free_bytes) or held + size <= self.free_bytes - size

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def shortage(self, caller: Caller) -> Overloaded:
        """The error for a caller that holds too much, or that comes while others do."""
        return Overloaded(
            f"requests and answers in progress hold {self.all_bytes - self.free_bytes:,} of the {self.all_bytes:,} "
            f"bytes of memory for them (server.bodies_bytes), {caller.held_bytes:,} of these are yours; read your "
            "answers, or try again soon",
            retry_after_seconds=_RETRY_SECONDS,
            max=self.all_bytes,
        )


class AnswerReservations:
    """Decides, when a program gets its slot, whether there is memory for what it may answer."""

    def __init__(self, memory: MemoryBudget, settings: Settings, find: Callable[[str], Caller | None]) -> None:
        """`find` returns the caller of a name."""
        self._memory = memory
        self._files_bytes = settings.request.files_bytes
        self._ordinary_bytes = 2 * settings.default_limits.output_bytes
        self._find = find
        self._holders = 0  # programs with a reservation; one program always gets it, so that all finish in the end

    def reserve(self, execution: Execution) -> Coroutine[Any, Any, Callable[[], None]] | None:
        """Reserve memory for a program that requests files or a large output; return what gives it back.

        Other programs need no reservation: their answer is counted when it exists.

        Raises:
            Overloaded: its caller holds too much already.
        """
        caller = self._find(execution.caller)
        if caller is None:
            return None
        memory = self._memory
        if not memory.may_run(caller):
            raise memory.shortage(caller)
        size = 2 * execution.limits.output_bytes + (self._files_bytes if execution.artifacts else 0)
        if size <= self._ordinary_bytes or size > memory.all_bytes:  # the latter could never be reserved
            return None
        return self._reserve(caller, min(size, memory.all_bytes // 2))

    async def _reserve(self, caller: Caller, size: int) -> Callable[[], None]:
        memory = self._memory
        if self._holders:
            await memory.wait_to_answer(caller, size, _SLOT_SECONDS, lambda: not self._holders)
        self._holders += 1
        memory.keep(caller, size)
        caller.reserved_bytes += size

        def give_back() -> None:
            self._holders -= 1
            caller.reserved_bytes -= size
            memory.let_go(caller, size)

        return give_back
