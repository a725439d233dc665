"""Property tests of the proxy's parser: any input is either a valid request or refused."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.egress import protocols
from belljar.egress.rules import Refused

_WORDS = st.sampled_from(
    [
        *(
            b"CONNECT ",
            b"GET ",
            b"in.test:443",
            b"http://in.test",
            b":80",
            b"/path?x",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"@",
        ),
        *(b"\r\n", b"\n", b"\r", b"Host: other.test", b"Connection: Host, X", b"X: y", b"Proxy-X: y", b" ", b"\0"),
        *(
            b"Transfer-Encoding: chunked",
            b"Content-Length: 3",
            b"[::1]",
            b"\5\1\0",
            b"\5\1\0\3\7in.test\1\xbb",
            b"\xff",
        ),
    ]
)


async def _parse(pieces: list[bytes]) -> tuple[protocols.ProxyRequest | None, bytes]:
    """Parse these pieces, one per read; return the result and what was sent meanwhile."""
    left = [piece for piece in pieces if piece]
    answered = bytearray()

    async def receive(count: int) -> bytes:
        if not left:
            return b""
        piece, left[0] = left[0][:count], left[0][count:]
        if not left[0]:
            left.pop(0)
        return piece

    async def send(data: bytes) -> None:
        answered.extend(data)

    try:
        return await protocols.receive_request(receive, send), bytes(answered)
    except (Refused, EOFError):
        return None, bytes(answered)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.binary(max_size=80), _WORDS), max_size=30))
def test_any_input_is_parsed_or_refused(pieces: list[bytes]) -> None:
    request, _ = asyncio.run(_parse(pieces))
    assert (request, _) == asyncio.run(_parse([b"".join(pieces)])), "the result depends on how the input is split"
    if request is not None:
        assert 0 <= request.port < 65536
        assert request.host == request.host.lower()
        assert request.host.isprintable()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_WORDS, max_size=12))
def test_forwarded_requests_name_the_checked_host(words: list[bytes]) -> None:
    request, _ = asyncio.run(_parse([b"GET http://in.test:8080/a HTTP/1.1\r\n", *words, b"\r\n\r\n"]))
    if request is not None:
        head = request.opening.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert (request.host, request.port) == ("in.test", 8080)
        assert [line for line in head if line.lower().startswith(b"host:")] == [b"Host: in.test:8080"]
        assert head[-1] == b"Connection: close"
        assert not any(line.lower().startswith(b"proxy-") for line in head)
        assert all(b"\n" not in line and b"\r" not in line and b"\0" not in line for line in head)


@pytest.mark.parametrize("header", [b"a:\r\n", b"Connection: a,b\r\n", b"Connection: " + b"," * 200 + b"\r\n"])
def test_headers_are_parsed_in_linear_time(header: bytes) -> None:
    """One program's request must not block the connections of others."""
    head = b"GET http://a.test/ HTTP/1.1\r\n"
    request = head + header * ((32 * 1024 - len(head) - 2) // len(header)) + b"\r\n"
    began = time.process_time()
    lines, rest = request.split(b"\r\n\r\n")[0].split(b"\r\n"), b""
    assert protocols._read_http(lines, rest).host == "a.test"
    assert time.process_time() - began < 1.0
