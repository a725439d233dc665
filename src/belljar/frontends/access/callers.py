"""Who asks, and what they may use at the moment."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sized

from belljar.contract.errors import QuotaExceeded, TooManySessions
from belljar.contract.execution import LIMIT_UNITS, Limits
from belljar.frontends.access.keys import Key, KeyRing
from belljar.frontends.api.memory_budget import Holder
from belljar.frontends.api.responses import Refusal
from belljar.settings import Settings

_PEERS_MAX = 4096
_BUSY_SECONDS = 1.0  # when to try again after too many at once: nobody knows, and this is short
_SESSIONS_SECONDS = 10.0  # … after too many sessions, which live longer than programs
_ANONYMOUS = "anonymous"  # owns all sessions where no key is needed; no key can have this id


class Caller(Holder):
    """One key's holder, or one address where no key is needed. Lives as long as the server."""

    def __init__(self, key: Key, settings: Settings) -> None:
        self.name = key.name
        self.running = 0
        self._opening = 0
        self._tokens = float(key.requests_per_minute or 0)
        self._counted_at = time.monotonic()
        self.adopt(key, settings)

    def adopt(self, key: Key, settings: Settings) -> None:
        """Take over new ceilings; what runs and what was counted stays."""
        self.key = key
        self.settings = _lower(settings, key.limits) if key.limits else settings

    @property
    def owner(self) -> str:
        """Whose sessions are this caller's: of the key itself, since a later key may have the same name."""
        return self.key.id or self.key.name

    def count_request(self) -> None:
        """Raises QuotaExceeded when there were too many of late."""
        per_minute = self.key.requests_per_minute
        if per_minute is None:
            return
        now = time.monotonic()
        self._tokens = min(float(per_minute), self._tokens + (now - self._counted_at) * per_minute / 60)
        self._counted_at = now
        if self._tokens < 1:
            seconds = (1 - self._tokens) * 60 / per_minute
            raise QuotaExceeded(
                f"key {self.name!r} may ask {per_minute} times a minute; try again in {seconds:.1f} s",
                retry_after_seconds=seconds,
                requests_per_minute=per_minute,
            )
        self._tokens -= 1

    @contextlib.contextmanager
    def running_up_to(self, wanted: int) -> Iterator[int]:
        """Reserve room for `wanted` programs at the same time, or for as many as there is, which is what it gives.

        Raises:
            QuotaExceeded: there is none at all.
        """
        at_most = self.key.max_concurrent
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
        """Reserve room for `wanted` more sessions than `are_open`, until they are.

        Raises:
            TooManySessions: this key may not have so many.
        """
        at_most = self.key.max_sessions
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
    """Tells callers apart: by their key where keys are in force, else by their address."""

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._settings = settings
        self._keys = keys
        self._by_name: dict[str, Caller] = {}
        self._by_address: dict[str, Caller] = {}
        self._needs_key = not keys.is_empty

    def require_keys(self) -> None:
        """From now on nobody gets in without one."""
        self._needs_key = True

    def identify(self, headers: Mapping[bytes, bytes], address: str) -> Caller:
        """Who sent a request with these headers.

        Raises:
            Refusal: no key, or one we do not know.
        """
        if not self._needs_key:
            if self._keys.is_empty:
                return self._anonymous(address)
            self._needs_key = True  # and so it stays: revoking the last key must not open the door
        text = _read_key(headers)
        if text is None:
            raise _unauthorized(
                "this server needs a key; send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'", key="missing"
            )
        key = self._keys.find(text)
        if key is None:
            raise _unauthorized(
                "this key is not known here or was revoked; ask the operator for another", key="unknown"
            )
        caller = self._by_name.get(key.name)
        if caller is None:
            caller = self._by_name[key.name] = Caller(key, self._settings)
        elif caller.key is not key:
            caller.adopt(key, self._settings)
        return caller

    def find(self, name: str) -> Caller | None:
        """The caller of that name, if it has sent anything yet."""
        return self._by_name.get(name) or self._by_address.get(name)

    def _anonymous(self, address: str) -> Caller:
        caller = self._by_address.get(address)
        if caller is None:
            if len(self._by_address) >= _PEERS_MAX:
                self._by_address = {each: who for each, who in self._by_address.items() if who.held_bytes}
            key = Key(name=address, id=_ANONYMOUS, network=True, tools=True)
            caller = self._by_address[address] = Caller(key, self._settings)
        return caller


def _read_key(headers: Mapping[bytes, bytes]) -> str | None:
    bearer = headers.get(b"authorization")
    if bearer is not None:
        scheme, _, text = bearer.partition(b" ")
        return text.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
    plain = headers.get(b"x-api-key")
    return None if plain is None else plain.strip().decode("latin-1")


def _unauthorized(message: str, key: str) -> Refusal:
    return Refusal(
        401, "unauthorized", message, {"key": key}, headers=((b"www-authenticate", b'Bearer realm="belljar"'),)
    )


def _lower(settings: Settings, limits: Mapping[str, float]) -> Settings:
    """The settings with the ceilings of one key, where those are lower."""
    ceiling = {each.name: getattr(settings.ceiling_limits, each.name) for each in dataclasses.fields(Limits)}
    for name, value in limits.items():
        unit = LIMIT_UNITS[name]
        ceiling[unit.field] = min(ceiling[unit.field], unit.read(value))
    default = {name: min(getattr(settings.default_limits, name), most) for name, most in ceiling.items()}
    return dataclasses.replace(settings, ceiling_limits=Limits(**ceiling), default_limits=Limits(**default))
