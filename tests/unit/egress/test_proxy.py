"""One program's proxy over real sockets: hostile requests, and requests that it lets through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from local_web import ENDLESS, LocalWeb, serving

from belljar.egress.proxy import Bounds, Proxy, resolver
from belljar.egress.rules import Rules

_DEADLINE_SECONDS = 30.0
PUBLIC = "3ffe::7"  # returned to the registry: public and unused


class ProxyClient:
    """A proxy and the connections to it."""

    def __init__(self, proxy: Proxy, port: int) -> None:
        self.proxy = proxy
        self.port = port
        self.messages: list[str] = []

    async def exchange(self, request: bytes, *, ends: bool = False) -> bytes:
        """Send bytes and return everything received until the proxy disconnects."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            if ends:
                writer.write_eof()
            return await reader.read()
        except ConnectionResetError:
            return b"reset"
        finally:
            writer.close()

    async def connect(self, authority: str) -> bytes:
        return await self.exchange(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


async def _no_addresses(host: str, port: int) -> Sequence[str]:
    return []


@contextlib.asynccontextmanager
async def opened(
    resolve: Resolver = _no_addresses, *, bounds: dict[str, Any] | None = None, **chosen: Any
) -> AsyncIterator[ProxyClient]:
    """Open a proxy that listens on this machine."""
    plain = {"ports": ["80", "443"], "allow": ["*"], "deny": [], "allow_private": [], "hosts": []}
    within = {
        "connections": 100,
        "connections_at_once": 16,
        "total_bytes": 1 << 30,
        "connect_seconds": 10.0,
        "idle_seconds": 20.0,
        **(bounds or {}),
    }
    listener = socket.create_server(("127.0.0.1", 0))
    messages: list[str] = []
    proxy = Proxy(listener, Rules.from_settings({**plain, **chosen}), Bounds(**within), resolve, messages.append)
    client = ProxyClient(proxy, listener.getsockname()[1])
    client.messages = messages
    try:
        yield client
    finally:
        await proxy.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test and check that it leaves no descriptor open."""
    before = len(os.listdir("/proc/self/fd"))

    async def within() -> None:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            await test()

    asyncio.run(within())
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while len(os.listdir("/proc/self/fd")) > before:  # the web server closes its own a moment later
        assert time.monotonic() < deadline, "descriptors are left open"
        time.sleep(0.01)


@contextlib.contextmanager
def web_for(*names: str) -> Any:
    """A web server and the settings that map these names to it."""
    with serving() as web:
        yield (
            web,
            {
                "hosts": [f"{name}=127.0.0.1" for name in names],
                "allow_private": [f"{name}:{web.port}" for name in names],
            },
        )


def _get(web: LocalWeb, name: str, path: str = "/", *headers: str) -> bytes:
    lines = (f"GET http://{name}:{web.port}{path} HTTP/1.1", f"Host: {name}:{web.port}", *headers)
    return "\r\n".join((*lines, "", "")).encode()


# ---- allowed requests


def test_plain_requests_are_rewritten() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(**chosen) as client:
                answer = await client.exchange(
                    _get(
                        web, "in.test", "/a?b", "Proxy-Connection: keep-alive", "Connection: X-Own", "X-Own: 1", "X: 2"
                    )
                )
                assert answer.startswith(b"HTTP/1.1 200")
                assert answer.endswith(b"hello")
                assert web.requests == {"/a?b": 1}
                assert web.headers == {"host": f"in.test:{web.port}", "connection": "close", "x": "2"}
                assert await client.proxy.close() == {
                    "connections": 1,
                    "refused": 0,
                    "sent_bytes": len(
                        f"GET /a?b HTTP/1.1\r\nHost: in.test:{web.port}\r\nX: 2\r\nConnection: close\r\n\r\n"
                    ),
                    "received_bytes": len(answer),
                }

        run(test)


def test_bodies_and_tunnels_pass_unchanged() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(**chosen) as client:
                head = f"POST http://in.test:{web.port}/ HTTP/1.1\r\nContent-Length: 300000\r\n\r\n".encode()
                assert (await client.exchange(head + b"y" * 300000)).endswith(b"thanks")
                assert web.bodies == [b"y" * 300000]
                tunnel = f"CONNECT in.test:{web.port} HTTP/1.1\r\n\r\n".encode()
                inside = b"GET /in HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                answer = await client.exchange(tunnel + inside)
                assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
                assert answer.endswith(b"hello")
                assert web.requests == {"/in": 1}

        run(test)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["at_once", "byte_by_byte"])
def test_socks_with_names(in_pieces: bool) -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(**chosen) as client:
                name = b"in.test"
                data = b"\5\1\0" + b"\5\1\0\3" + bytes([len(name)]) + name + web.port.to_bytes(2, "big")
                data += b"GET /s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
                for piece in [bytes([each]) for each in data] if in_pieces else [data]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                answer = await reader.read()
                writer.close()
                assert answer.startswith(b"\5\0" + b"\5\0\0\1" + bytes(6) + b"HTTP/1.1 200 OK")

        run(test)


# ---- refused requests


@pytest.mark.parametrize(
    "authority",
    [
        *("127.0.0.1:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "[::ffff:7f00:1]:80", "10.0.0.1:80"),
        *("169.254.169.254:80", "[fd00:ec2::254]:80", "100.64.0.1:443", "0.0.0.0:80", "[::]:80"),
        *("2130706433:80", "0x7f000001:80", "0177.0.0.1:80", "127.1:80", "localhost:80"),
    ],
)
def test_this_machine_and_its_neighbours_are_refused_in_every_form(authority: str) -> None:
    async def test() -> None:
        with ThreadPoolExecutor(1) as threads:
            async with opened(resolver(threads)) as client:
                answer = await client.connect(authority)
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert b"no public address" in answer
                assert (await client.proxy.close())["connections"] == 0

    run(test)


def test_a_name_with_public_and_private_addresses_is_refused() -> None:
    with serving() as web:

        async def both(host: str, port: int) -> Sequence[str]:
            return ["93.184.215.14", "127.0.0.1"]

        async def test() -> None:
            async with opened(both, ports=[str(web.port)]) as client:
                assert (await client.connect(f"both.test:{web.port}")).startswith(b"HTTP/1.1 403 ")
            assert not web.requests

        run(test)


def test_a_rebinding_name_is_resolved_once_per_connection() -> None:
    """The proxy connects to the address that it checked, and checks every new connection."""
    with serving() as allowed, serving(address="127.0.0.2") as other:
        answers = [["127.0.0.1"], ["127.0.0.2"]]
        questions = []

        async def rebinding(host: str, port: int) -> Sequence[str]:
            questions.append(host)
            return answers[min(len(questions), 2) - 1]

        async def test() -> None:
            # Both addresses are local so that both can answer; the second is denied to tell them apart.
            name = f"rebinds.test:{allowed.port}"
            async with opened(rebinding, allow_private=[name], deny=["127.0.0.2/32"]) as client:
                assert (await client.exchange(_get(allowed, "rebinds.test"))).endswith(b"hello")
                assert questions == ["rebinds.test"]
                refused = await client.exchange(_get(allowed, "rebinds.test"))
                assert refused.startswith(b"HTTP/1.1 403 ")
                assert questions == ["rebinds.test"] * 2
            assert (allowed.requests.total(), other.requests.total()) == (1, 0)

        run(test)


def test_a_public_name_that_becomes_private_never_connects_there() -> None:
    with serving() as web:
        questions = []

        async def rebinding(host: str, port: int) -> Sequence[str]:
            questions.append(host)
            return [PUBLIC] if len(questions) == 1 else ["127.0.0.1"]

        async def test() -> None:
            async with opened(rebinding, ports=[str(web.port)], bounds={"connect_seconds": 0.5}) as client:
                statuses = [(await client.connect(f"r.test:{web.port}"))[:12] for _ in range(2)]
                assert statuses[0] != b"HTTP/1.1 403", "it was public when it was checked"
                assert statuses[1] == b"HTTP/1.1 403"
            assert len(questions) == 2
            assert not web.requests

        run(test)


def test_denied_names_are_not_resolved() -> None:
    resolved = []

    async def listening(host: str, port: int) -> Sequence[str]:
        resolved.append(host)
        return [PUBLIC]

    async def test() -> None:
        async with opened(listening, allow=["*.pypi.test"], deny=["bad.pypi.test"]) as client:
            for authority in ("secret.evil.test:443", "bad.pypi.test:443", "files.pypi.test:22"):
                assert (await client.connect(authority)).startswith(b"HTTP/1.1 403 ")
        assert resolved == []
        assert all("refused" in line for line in client.messages)

    run(test)


def test_a_redirect_to_a_private_address_is_refused_when_it_is_followed() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(**chosen) as client:
                answer = await client.exchange(_get(web, "in.test", f"/to?http://127.0.0.1:{web.port}/x"))
                assert answer.startswith(b"HTTP/1.1 302")
                assert (await client.exchange(_get(web, "127.0.0.1", "/x"))).startswith(b"HTTP/1.1 403 ")
            assert web.requests.total() == 1

        run(test)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"\0\1\2\3\r\n\r\n", id="nonsense"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: in.test\r\n\r\n", id="incomplete_url"),
        pytest.param(b"GET ftp://in.test/ HTTP/1.1\r\n\r\n", id="another_scheme"),
        pytest.param(b"GET https://in.test/ HTTP/1.1\r\n\r\n", id="tls_without_connect"),
        pytest.param(b"GET http://user:word@in.test/ HTTP/1.1\r\n\r\n", id="a_password_in_the_url"),
        pytest.param(b"GET http://in.test:80:80/ HTTP/1.1\r\n\r\n", id="two_ports"),
        pytest.param(b"GET http://in.test:99999/ HTTP/1.1\r\n\r\n", id="no_such_port"),
        pytest.param(b"CONNECT in.test HTTP/1.1\r\n\r\n", id="no_port"),
        pytest.param(b"CONNECT in.test:0 HTTP/1.1\r\n\r\n", id="port_zero"),
        pytest.param(b"CONNECT in.test:80 HTTP/2.0\r\n\r\n", id="another_version"),
        pytest.param(b"CONNECT  in.test:80 HTTP/1.1\r\n\r\n", id="two_spaces"),
        pytest.param(b"GET http://in.test/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", id="a_bare_line_feed"),
        pytest.param(b"GET http://in.test/ HTTP/1.1\r\nA : b\r\n\r\n", id="a_space_before_the_colon"),
        pytest.param(b"GET http://in.test/ HTTP/1.1\r\n folded\r\n\r\n", id="a_folded_line"),
        pytest.param(b"GET http://in.test/ HTTP/1.1\r\nA: \0\r\n\r\n", id="a_nul"),
        pytest.param(b"GET http://in.test/" + b"a" * 40000 + b" HTTP/1.1\r\n\r\n", id="oversize"),
        pytest.param(b"GET http://in.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 9000 + b"\r\n", id="too_many_headers"),
    ],
)
def test_malformed_requests_are_refused(words: bytes) -> None:
    async def test() -> None:
        async with opened(hosts=["in.test=127.0.0.1"], allow_private=["in.test"]) as client:
            assert (await client.exchange(words)).startswith((b"HTTP/1.1 400 ", b"reset"))
            assert await client.proxy.close() == {
                "connections": 0,
                "refused": 1,
                "sent_bytes": 0,
                "received_bytes": 0,
            }

    run(test)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        pytest.param(b"\5\1\2", b"\5\xff", id="a_password"),
        pytest.param(b"\5\1\0\5\2\0\1\x7f\0\0\1\0\x50", b"\5\0\5\7\0\1" + bytes(6), id="bind"),
        pytest.param(b"\5\1\0\5\3\0\1\x7f\0\0\1\0\x50", b"\5\0\5\7\0\1" + bytes(6), id="udp"),
        pytest.param(b"\5\1\0\5\1\0\1\x7f\0\0\1\0\x50", b"\5\0\5\2\0\1" + bytes(6), id="this_machine"),
        pytest.param(b"\5\1\0\5\1\0\4" + bytes(15) + b"\1\0\x50", b"\5\0\5\2\0\1" + bytes(6), id="this_machine_v6"),
        pytest.param(b"\5\1\0\5\1\0\3\3a b\0\x50", b"\5\0\5\2\0\1" + bytes(6), id="no_name"),
        pytest.param(b"\5\1\0\5\1\0\3\xff", b"\5\0", id="half_a_request"),
        pytest.param(b"\5", b"", id="one_byte"),
    ],
)
def test_invalid_socks_requests_are_refused(words: bytes, answer: bytes) -> None:
    async def literally(host: str, port: int) -> Sequence[str]:
        return [host]

    async def test() -> None:
        async with opened(literally) as client:
            assert await client.exchange(words, ends=True) == answer
            assert (await client.proxy.close())["connections"] == 0

    run(test)


# ---- limits


def test_a_silent_client_is_disconnected() -> None:
    async def test() -> None:
        async with opened(bounds={"head_seconds": 0.3}) as client:
            assert await client.exchange(b"GET http://in.test/ HT") == b""
            assert await client.exchange(b"") == b""

    run(test)


def test_a_flood_of_silent_connections_does_not_block_others() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(bounds={"head_seconds": 0.3, "connections_at_once": 4}, **chosen) as client:
                silent = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(20)]
                assert (await client.exchange(_get(web, "in.test"))).endswith(b"hello")
                for _, writer in silent:
                    writer.close()

        run(test)


def test_connections_are_limited_per_cell() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(bounds={"connections": 3}, **chosen) as client:
                answers = [(await client.exchange(_get(web, "in.test")))[:12] for _ in range(5)]
                assert answers == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 429"] * 2
                counts = client.proxy.renew()
                assert (counts["connections"], counts["refused"]) == (3, 2)
                assert (await client.exchange(_get(web, "in.test"))).endswith(b"hello")
                assert client.proxy.renew()["connections"] == 1

        run(test)


def test_bytes_are_limited_and_a_cut_differs_from_an_end() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(bounds={"total_bytes": 1 << 20}, **chosen) as client:
                reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
                writer.write(_get(web, "in.test", ENDLESS))
                with pytest.raises(ConnectionResetError):
                    while await reader.read(65536):
                        pass
                writer.close()
                assert (await client.exchange(_get(web, "in.test"))).startswith(b"HTTP/1.1 429 ")
            assert await asyncio.to_thread(web.hung_up.wait, 10)

        run(test)


def test_an_idle_connection_times_out() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(bounds={"idle_seconds": 0.3}, **chosen) as client:
                assert (await client.connect(f"in.test:{web.port}")) in (
                    b"reset",
                    b"HTTP/1.1 200 Connection established\r\n\r\n",
                )

        run(test)


def test_closing_ends_a_running_transfer() -> None:
    with web_for("in.test") as (web, chosen):

        async def test() -> None:
            async with opened(**chosen) as client:
                reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
                writer.write(_get(web, "in.test", ENDLESS))
                await reader.readexactly(200_000)
                counts = await client.proxy.close()
                assert counts["received_bytes"] >= 200_000
                writer.close()
            assert await asyncio.to_thread(web.hung_up.wait, 10)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", client.port)

        run(test)
