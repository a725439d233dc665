"""Which addresses may be reached on behalf of a program: public ones that do not belong to this machine.

Used by the egress process and by the web tools, so that both refuse the same.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

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
