"""Which addresses are public: those that mean the same host to everybody on the internet."""

from __future__ import annotations

import ipaddress
from typing import Any

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether anybody on the internet could reach this address, and would reach what we reach.

    Raises:
        ValueError: it is no address.
    """
    return all(
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_unspecified)
        and not (address.version == 6 and address.is_site_local)
        for address in meant_by(text)
    )


def meant_by(text: str) -> list[Any]:
    """The address, or those inside it: several kinds of IPv6 addresses lead to an IPv4 one."""
    address: Any = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 4:
        return [address]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inner if each is not None] or [address]
