"""Where programs may go. The operator's lists are about names; what is public is about addresses.

A name is judged before anybody is asked for its addresses, since a question to a name server tells its owner
something, too. Then all its addresses are judged, and the connection goes to one that was: a name that means
something else a moment later changes nothing.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from belljar.egress.addresses import may_be_reached, meant_by

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")
_NOT_REACHED = "it has no public address, or there is no such host"  # one answer: which of the two is not told


class Refused(Exception):
    """The program may not go there; the message tells it why."""

    status = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator has chosen. Patterns are shell globs over names in lower case."""

    ports: frozenset[int]
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    denied_networks: tuple[Any, ...] = ()
    allow_private: frozenset[str] = frozenset()  # NAME or NAME:PORT
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # addresses of names that nobody is asked for

    @classmethod
    def from_settings(cls, chosen: Mapping[str, Sequence[Any]]) -> Rules:
        """From the plain values of `settings.NetworkSettings`.

        Raises:
            ValueError: one of them cannot be read; the message names it.
        """
        networks = [network for each in chosen["deny"] if (network := _as_network(each)) is not None]
        hosts: dict[str, tuple[str, ...]] = {}
        for each in chosen["hosts"]:
            name, _, address = each.partition("=")
            ipaddress.ip_address(address)
            hosts[name.lower()] = (*hosts.get(name.lower(), ()), address)
        return cls(
            ports=frozenset(map(_as_port, chosen["ports"])),
            allow=tuple(each.lower() for each in chosen["allow"]),
            deny=tuple(each.lower() for each in chosen["deny"] if _as_network(each) is None),
            denied_networks=tuple(networks),
            allow_private=frozenset(each.lower() for each in chosen["allow_private"]),
            hosts=hosts,
        )

    @property
    def every_port(self) -> frozenset[int]:
        """Every port that any connection may go to."""
        named = (each.rpartition(":")[2] for each in self.allow_private)
        return self.ports | {int(port) for port in named if port.isdigit()}

    def check_name(self, host: str, port: int) -> None:
        """Raise Refused unless a host of this name may be asked for at this port."""
        if any(fnmatch.fnmatchcase(host, pattern) for pattern in self.deny):
            raise Refused(f"{host} is denied here")
        if f"{host}:{port}" in self.allow_private:
            return
        if host not in self.allow_private and not any(fnmatch.fnmatchcase(host, pattern) for pattern in self.allow):
            raise Refused(f"{host} is not among the hosts that are allowed here")
        if port not in self.ports:
            known = ", ".join(map(str, sorted(self.ports)))
            raise Refused(f"port {port} is not allowed here, only {known}")

    def check_addresses(self, host: str, port: int, addresses: Sequence[str]) -> None:
        """Raise Refused unless each of a host's addresses may be reached."""
        may_be_private = host in self.allow_private or f"{host}:{port}" in self.allow_private
        for text in addresses:
            meant = [ipaddress.ip_address(text), *meant_by(text)]
            if any(address in network for address in meant for network in self.denied_networks):
                raise Refused(f"{host} is denied here")
            if not may_be_private and not may_be_reached(text):
                raise Refused(f"{host} cannot be reached: {_NOT_REACHED}")
        if not addresses:
            raise Refused(f"{host} cannot be reached: {_NOT_REACHED}")


def read_host(text: str) -> str:
    """A name, or an address without its brackets, as the rules compare it.

    Raises:
        Refused: it is neither.
    """
    name = text.lower()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if ":" in name:
        try:
            return str(ipaddress.IPv6Address(name)) if "%" not in name else _refuse(text)
        except ValueError:
            return _refuse(text)
    name = name.removesuffix(".")
    return name if _NAME.fullmatch(name) else _refuse(text)


def _refuse(text: str) -> str:
    raise Refused(f"{text[:100]!a} is not the name of a host")


def _as_network(text: str) -> Any:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _as_port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise ValueError(f"there is no port {port}")
    return port
