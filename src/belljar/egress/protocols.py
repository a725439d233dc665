"""Parses what a program sends to its proxy: HTTP (`CONNECT host:port` or a whole URL) or SOCKS 5.

Every byte is hostile. A request is bounded, read to its end before anything is done, and refused unless it is plain.
A plain HTTP request is rebuilt from its parsed parts, for one host and one answer, so that proxy and host cannot
disagree about where it ends (request smuggling).
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from belljar.egress.rules import Refused, read_host

_HEAD_BYTES_MAX = 32 * 1024
_SOCKS_VERSION, _SOCKS_CONNECT, _NO_METHOD = 5, 1, 0xFF
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SOCKS_GRANTED, _SOCKS_REFUSED, _SOCKS_UNREACHED, _SOCKS_NO_COMMAND = 0, 2, 4, 7
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) (HTTP/1\.[01])")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*)")
_URL = re.compile(r"http://([^/?#@]+)([/?][^#]*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
#: Hop-by-hop headers, and those that the proxy writes itself.
_NOT_PASSED_ON = {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"host"}

Receive = Callable[[int], Awaitable[bytes]]  # returns at most so many bytes; b"" at the end
Send = Callable[[bytes], Awaitable[None]]


class NotUnderstood(Refused):
    """Neither HTTP nor SOCKS 5, or malformed."""

    status = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """The connection that a program wants."""

    host: str
    port: int
    opening: bytes = b""  # sent to the host first
    is_socks: bool = False
    is_tunnel: bool = True

    def granted(self) -> bytes:
        """The bytes that report success to the program."""
        if self.is_socks:
            return _socks_reply(_SOCKS_GRANTED)
        return b"HTTP/1.1 200 Connection established\r\n\r\n" if self.is_tunnel else b""


async def receive_request(receive: Receive, send: Send) -> ProxyRequest:
    """Read one request.

    Raises:
        Refused: the request is malformed or unsupported.
        EOFError: the program closed the connection without one.
    """
    first = await receive(_HEAD_BYTES_MAX)
    if not first:
        raise EOFError
    if first[0] == _SOCKS_VERSION:
        return await _receive_socks(_Reader(first, receive), send)
    return _read_http(*await _read_head(first, receive))


def refusal(reason: str, status: int, is_socks: bool) -> bytes:
    """The bytes that report a refusal to the program; in HTTP, the reason stands where clients show it."""
    if is_socks:
        return _socks_reply(_SOCKS_REFUSED if status in (403, 429) else _SOCKS_UNREACHED)
    phrase = " ".join(reason.split()).encode("ascii", "replace")
    head = (b"HTTP/1.1 %d %b" % (status, phrase), b"Content-Type: text/plain", b"Content-Length: %d" % len(phrase))
    return b"\r\n".join((*head, b"Connection: close", b"", phrase))


# ---- HTTP


async def _read_head(received: bytes, receive: Receive) -> tuple[list[bytes], bytes]:
    """Return the lines of a request's head, and the bytes after it."""
    while b"\r\n\r\n" not in received:
        if len(received) >= _HEAD_BYTES_MAX:
            raise NotUnderstood("the head of the request is too large")
        more = await receive(_HEAD_BYTES_MAX - len(received))
        if not more:
            raise EOFError
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), rest


def _read_http(lines: list[bytes], rest: bytes) -> ProxyRequest:
    request = _REQUEST.fullmatch(lines[0])
    if request is None:
        raise NotUnderstood("this is an HTTP and SOCKS 5 proxy; the request is neither")
    method, target = request[1], request[2].decode("ascii")
    headers = [_read_header(line) for line in lines[1:]]
    if method == b"CONNECT":
        host, port = _read_authority(target, None)
        return ProxyRequest(host=host, port=port, opening=rest)
    url = _URL.fullmatch(target)
    if url is None:
        raise NotUnderstood("send a whole http:// URL or CONNECT to a proxy")
    host, port = _read_authority(url[1], 80)
    dropped = _NOT_PASSED_ON | _named_by(headers)
    kept = [b"%b: %b" % each for each in headers if each[0].lower() not in dropped]
    kept = [line for line in kept if not line.lower().startswith(b"proxy-")]
    path = (url[2] or "/").encode()
    rebuilt = (
        b"%b %b %b" % (method, path if path.startswith(b"/") else b"/" + path, request[3]),
        b"Host: " + url[1].encode(),
        *kept,
        b"Connection: close",
    )
    return ProxyRequest(host=host, port=port, opening=b"\r\n".join((*rebuilt, b"", rest)), is_tunnel=False)


def _read_header(line: bytes) -> tuple[bytes, bytes]:
    header = _HEADER.fullmatch(line)
    if header is None:
        raise NotUnderstood("a header of the request is malformed")
    return header[1], header[2].rstrip(b" \t")


def _named_by(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """The headers that `Connection` declares as hop-by-hop."""
    values = (value for name, value in headers if name.lower() == b"connection")
    named = {each.strip().lower() for value in values for each in value.split(b",")}
    return named - {b"content-length", b"transfer-encoding"}  # dropping these would lose the body's length


def _read_authority(text: str, port_if_none: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    port = port_if_none if found is None or found[2] is None else int(found[2])
    if found is None or port is None or not 0 < port < 65536:
        raise NotUnderstood(f"{text[:100]!a} is not HOST:PORT")
    return read_host(found[1]), port


# ---- SOCKS 5 (RFC 1928), without authentication


class _Reader:
    """Reads an exact number of bytes."""

    def __init__(self, received: bytes, receive: Receive) -> None:
        self.unread = received
        self._receive = receive

    async def take(self, count: int) -> bytes:
        while len(self.unread) < count:
            more = await self._receive(count - len(self.unread))
            if not more:
                raise EOFError
            self.unread += more
        taken, self.unread = self.unread[:count], self.unread[count:]
        return taken


class SocksRefused(Refused):
    """A refusal that was already sent in SOCKS."""

    status = 0


async def _receive_socks(reader: _Reader, send: Send) -> ProxyRequest:
    _, count = await reader.take(2)
    if 0 not in await reader.take(count):
        await send(bytes((_SOCKS_VERSION, _NO_METHOD)))
        raise SocksRefused("no method")
    await send(bytes((_SOCKS_VERSION, 0)))
    version, command, _, kind = await reader.take(4)
    if version != _SOCKS_VERSION or command != _SOCKS_CONNECT or kind not in (_IPV4, _NAME, _IPV6):
        await send(_socks_reply(_SOCKS_NO_COMMAND))
        raise SocksRefused("no such command")
    if kind == _NAME:
        (length,) = await reader.take(1)
        name = (await reader.take(length)).decode("latin-1")
    else:
        name = str(ipaddress.ip_address(await reader.take(4 if kind == _IPV4 else 16)))
    (port,) = struct.unpack(">H", await reader.take(2))
    try:
        host = read_host(name)
    except Refused as error:
        await send(_socks_reply(_SOCKS_REFUSED))
        raise SocksRefused(str(error)) from None
    return ProxyRequest(host=host, port=port, opening=reader.unread, is_socks=True)


def _socks_reply(code: int) -> bytes:
    return bytes((_SOCKS_VERSION, code, 0, _IPV4)) + bytes(6)
