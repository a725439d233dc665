"""Callers: the identity behind a request, and the limits that apply to it.

A caller is known by its API key where the server requires keys, else by its address. The one client of an MCP server on
standard input and output is a caller, too.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping

from belljar.contract.execution import LIMIT_UNITS, Limits
from belljar.frontends.access.keys import EVERYTHING, Grants, KeyRing
from belljar.frontends.access.quotas import Quota
from belljar.frontends.access.refusals import unauthorized
from belljar.settings import Settings

_ADDRESSES_MAX = 4096
_ANONYMOUS = "anonymous"  # owns all sessions on a server without keys; no key can have this id


class Caller(Quota):
    """One key, or one address on a server without keys. Lives as long as the server."""

    def __init__(self, name: str, settings: Settings, grants: Grants = EVERYTHING, owner: str = "") -> None:
        super().__init__(name, grants)
        self.adopt(settings, grants, owner)

    def adopt(self, settings: Settings, grants: Grants, owner: str) -> None:
        """Take over new grants; what runs and what was counted stays."""
        self.grants = grants
        self.owner = owner or self.name  # of this caller's sessions: a key's id, as a later key may have the same name
        self.settings = _lower(settings, grants.limits) if grants.limits else settings


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
