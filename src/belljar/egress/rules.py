"""Which hosts a program may reach: the operator's lists match names, and addresses must be public.

The name is checked before it is resolved, since a DNS query is itself a message to the owner of the name. Then all of
its addresses are checked, and the connection goes to a checked address: DNS rebinding has no effect.

The egress process and the web tools use the same rules, so that both refuse the same addresses.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")
_NOT_REACHED = "it has no public address, or there is no such host"  # does not reveal which of the two
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Not public, whatever `ipaddress` says: metadata services of clouds, and ranges that older Pythons call global.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",  # shared by carriers; 100.100.100.200 is Alibaba's metadata service
            "168.63.129.16/32",  # Azure's wire server
            "169.254.0.0/16",  # link-local; 169.254.169.254 is the metadata service of most clouds
            "192.0.0.0/24",  # IETF protocol assignments; 192.0.0.192 is Oracle's metadata service
            "192.88.99.0/24",  # 6to4 relays
            "64:ff9b:1::/48",  # NAT64 of one network
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fc00::/7",  # unique local; fd00:ec2::254 and fd20:ce::254 are metadata services
            "fe80::/10",  # link-local; fe80::a9fe:a9fe is OpenStack's metadata service
        ),
    )
)


class Refused(Exception):
    """The program may not connect there; the message, which it receives, says why."""

    status = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The operator's choices. Patterns are shell globs over names in lower case."""

    ports: frozenset[int]
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    denied_networks: tuple[Any, ...] = ()
    allow_private: frozenset[str] = frozenset()  # NAME or NAME:PORT
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names that bypass DNS

    @classmethod
    def from_settings(cls, chosen: Mapping[str, Sequence[Any]]) -> Rules:
        """Build the rules from the plain values of `settings.NetworkSettings`.

        Raises:
            ValueError: a value is invalid; the message names it.
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
        """All ports that some connection may use."""
        named = (each.rpartition(":")[2] for each in self.allow_private)
        return self.ports | {int(port) for port in named if port.isdigit()}

    def check_name(self, host: str, port: int) -> None:
        """Raise Refused unless the rules allow this name and port."""
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
        """Raise Refused unless every address of the host may be reached."""
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
    """Normalise a host name, or an address (without its brackets), for comparison with the rules.

    Raises:
        Refused: the text is neither.
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
        raise ValueError(f"{port} is not a port")
    return port


# ---- addresses


def may_be_reached(text: str) -> bool:
    """Whether the proxy may connect to this address for a program.

    Raises:
        ValueError: it is not an address.
    """
    return is_public(text) and not any(is_own(str(address)) for address in [_parse(text), *meant_by(text)])


def is_public(text: str) -> bool:
    """Whether the address leads to the same host from everywhere on the internet.

    Raises:
        ValueError: it is not an address.
    """
    return all(
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_unspecified)
        and not (address.version == 6 and address.is_site_local)
        and not any(address in network for network in _NOT_PUBLIC)
        for address in meant_by(text)
    )


def meant_by(text: str) -> list[Any]:
    """The address, or the IPv4 addresses embedded in it (mapped, 6to4, Teredo, NAT64)."""
    address = _parse(text)
    if address.version == 4:
        return [address]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inner if each is not None] or [address]


def is_own(address: str) -> bool:
    """Whether the address belongs to this machine: the kernel would choose it as the source address, too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            return bool(probe.getsockname()[0] == address)
    except OSError:
        return False  # no route


def _parse(text: str) -> Any:
    return ipaddress.ip_address(text.partition("%")[0])
