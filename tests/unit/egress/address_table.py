"""Addresses that programs must not reach through the proxy, and some that they may."""

from __future__ import annotations

import ipaddress

PUBLIC = ("93.184.215.14", "8.8.8.8", "168.63.129.17", "2606:2800:21f::1", "::ffff:8.8.8.8", "64:ff9b::808:808")

_V4 = (
    *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.0.9", "172.16.0.1", "192.0.0.1", "192.0.2.1"),
    *("192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    "255.255.255.255",
)
#: Metadata services of cloud providers, which often hand out credentials.
METADATA_V4 = ("169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200", "169.254.0.23", "169.254.170.2")
METADATA_V6 = ("fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe", "fe80::a9fe:a9fe%lo", "fd00:42::42")
_V6 = (
    *("::", "::1", "::127.0.0.1", "64:ff9b:1::1", "fc00::1", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1", "100::1"),
    *("2001:db8::1", "3fff::1", "5f00::1"),
)


def _embedded(text: str) -> list[str]:
    """The IPv6 addresses that embed an IPv4 address."""
    v4 = int(ipaddress.IPv4Address(text))
    numbers = (
        0xFFFF << 32 | v4,  # mapped
        0x64FF9B << 96 | v4,  # NAT64
        0x2002 << 112 | v4 << 80,  # 6to4
        0x20010000 << 96 | int(ipaddress.IPv4Address("8.8.8.8")) << 64 | v4 ^ 0xFFFFFFFF,  # a Teredo client
        0x20010000 << 96 | v4 << 64 | int(ipaddress.IPv4Address("8.8.8.8")) ^ 0xFFFFFFFF,  # a Teredo server
    )
    return [str(ipaddress.IPv6Address(number)) for number in numbers]


NOT_PUBLIC = (
    *_V4,
    *METADATA_V4,
    *METADATA_V6,
    *_V6,
    *(each for text in (*METADATA_V4, "127.0.0.1", "10.0.0.1") for each in _embedded(text)),
)
