"""Which requests are looked at at all: the Host they were sent to, and the page they come from.

Why the Host: a web page may let its own name resolve to 127.0.0.1, and the browser then speaks to us as if we were
that page's own server. The name it was told stays in the Host header. An address cannot be made to resolve anywhere,
so addresses are fine.

Why the Origin: browsers send it with whatever a page of another origin asks for, and no other client sends it by
itself.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

from belljar.frontends.api.responses import Headers, Refusal
from belljar.settings import ServerSettings

_REMEMBERED_MAX = 1024
_ONCE = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"content-type", b"content-length"})


class Guard:
    """Checks headers before anything else is read."""

    def __init__(self, server: ServerSettings) -> None:
        self._any_host = "*" in server.allowed_hosts
        self._hosts = {"localhost", socket.gethostname().lower(), server.host.lower()}
        self._hosts.update(name.lower() for name in server.allowed_hosts)
        self._origins = {origin.rstrip("/").lower().encode() for origin in server.allowed_origins}
        self._good_hosts: set[bytes] = set()  # seen and accepted: the check is not free

    def check(self, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that the answer must carry for the asking page to read it.

        Raises:
            Refusal: 403, with what the operator can do about it.
        """
        host = headers.get(b"host")
        if host is not None and host not in self._good_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        return () if origin is None else self._check_origin(origin, host)

    def _check_host(self, host: bytes) -> None:
        name = _name_in(host)
        if not (self._any_host or name in self._hosts or _is_address(name)):
            raise Refusal(
                403,
                "host_not_allowed",
                "this server does not go by the name in the Host header; the operator adds names with "
                "server.allowed_hosts",
            )
        if len(self._good_hosts) < _REMEMBERED_MAX:
            self._good_hosts.add(host)

    def _check_origin(self, origin: bytes, host: bytes | None) -> Headers:
        asked = origin.lower()
        if host is not None and asked in (b"http://" + host.lower(), b"https://" + host.lower()):
            return ()
        if asked not in self._origins:
            raise Refusal(
                403,
                "origin_not_allowed",
                "web pages of that origin may not call this server; the operator adds origins with "
                "server.allowed_origins",
            )
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
            (
                b"access-control-allow-headers",
                b"authorization, content-type, x-api-key, "
                b"mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id",
            ),
            (b"access-control-expose-headers", b"mcp-session-id"),
            (b"access-control-max-age", b"600"),
            (b"vary", b"origin"),
        )


def check_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise Refusal if a header that decides something comes twice: a proxy in front may have read the other one."""
    names = [name for name, _ in headers if name in _ONCE]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(400, "bad_request", f"the request has several {name.decode().title()} headers; send one")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a socket bound there."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _name_in(host: bytes) -> str:
    """The Host header without its port; nothing that cannot be a name survives."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
