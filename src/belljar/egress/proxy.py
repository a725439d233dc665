"""The proxy of one program: accepts on its loopback listener, connects where the rules allow, counts and limits.

Each direction of a connection buffers one chunk and reads the next once it was sent, so a slow end applies
back-pressure to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from belljar.aio import cancel_all
from belljar.egress import protocols
from belljar.egress.protocols import ProxyRequest
from belljar.egress.rules import Refused, Rules

_PIECE_BYTES = 64 * 1024
_FAREWELL_SECONDS = 1.0  # for a program to read why it was refused
_FULL_SECONDS = 0.1  # before trying again: a descriptor may be free by then
_LOOKUPS_AT_ONCE = 4  # name servers can be slow, and threads are few

_libc = ctypes.CDLL(None)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Log = Callable[[str], None]


class UsedUp(Refused):
    """The program has reached a limit."""

    status = 429


class Unreached(Refused):
    """The host was allowed but could not be reached."""

    status = 502


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one execution; seconds are per connection, the rest is for all connections together."""

    connections: int
    connections_at_once: int
    total_bytes: int
    connect_seconds: float
    idle_seconds: float
    head_seconds: float = 10.0  # to send the request


class Proxy:
    """Accepts and serves until it is closed. Owns its listener."""

    def __init__(self, listener: socket.socket, rules: Rules, bounds: Bounds, resolve: Resolve, log: Log) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._rules = rules
        self._bounds = bounds
        self._resolve = resolve
        self._log = log  # takes a log line: host:port and what happened
        self._loop = asyncio.get_running_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(bounds.connections_at_once)
        self._lookups = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._renewed = asyncio.Event()
        self._forget_counts()
        self._accepting = self._loop.create_task(self._accept())

    def _forget_counts(self) -> None:
        self._accepted = self._connected = self._refused = self._sent_bytes = self._received_bytes = 0

    def renew(self) -> dict[str, int]:
        """Return the counts and reset them, for the next cell of a session."""
        counts = {
            "connections": self._connected,
            "refused": self._refused,
            "sent_bytes": self._sent_bytes,
            "received_bytes": self._received_bytes,
        }
        self._forget_counts()
        self._renewed.set()
        return counts

    async def close(self) -> dict[str, int]:
        """End every connection and return the counts; nothing is open when this returns."""
        await cancel_all((self._accepting, *self._connections))
        self._listener.close()
        return self.renew()

    async def _accept(self) -> None:
        while True:
            await self._free.acquire()
            try:
                peer, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # out of descriptors, or the peer has left
                self._free.release()
                await asyncio.sleep(_FULL_SECONDS)
                continue
            except BaseException:
                self._free.release()
                raise
            self._accepted += 1
            task = self._loop.create_task(self._serve(peer))
            self._connections.add(task)
            task.add_done_callback(self._served)
            if self._accepted >= 2 * self._bounds.connections:  # stop accepting until the counts are reset
                self._renewed.clear()
                await self._renewed.wait()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._free.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log(f"a connection failed: {error!r}")

    async def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                request = await self._receive_request(peer)
            except (EOFError, OSError, TimeoutError):
                return
            except Refused as error:
                self._refused += 1
                if error.status:
                    await self._send_refusal(peer, protocols.refusal(str(error), error.status, is_socks=False))
                return
            try:
                upstream = await self._connect(request)
            except Refused as error:
                self._refused += 1
                self._log(f"{request.host}:{request.port} refused: {error}")
                await self._send_refusal(peer, protocols.refusal(str(error), error.status, request.is_socks))
                return
            self._connected += 1
            self._log(f"{request.host}:{request.port} connected")
            with upstream:
                try:
                    await self._relay(request, peer, upstream)
                except (OSError, TimeoutError, UsedUp):
                    _abort(peer)
                    _abort(upstream)

    async def _receive_request(self, peer: socket.socket) -> ProxyRequest:
        async with asyncio.timeout(self._bounds.head_seconds):
            return await protocols.receive_request(
                lambda count: self._loop.sock_recv(peer, count), lambda said: self._loop.sock_sendall(peer, said)
            )

    async def _send_refusal(self, peer: socket.socket, words: bytes) -> None:
        """Send the refusal and drain the peer: closing a socket with unread data would discard what we sent."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._loop.sock_sendall(peer, words)
                peer.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(peer, _PIECE_BYTES):
                    pass

    # ---- connecting

    async def _connect(self, request: ProxyRequest) -> socket.socket:
        self._check_bounds()
        self._rules.check_name(request.host, request.port)
        try:
            async with asyncio.timeout(self._bounds.connect_seconds):
                addresses = await self._look_up(request)
                self._rules.check_addresses(request.host, request.port, addresses)
                return await self._connect_to_one(request, addresses)
        except TimeoutError:
            raise Unreached(f"{request.host}:{request.port} did not answer in time") from None

    def _check_bounds(self) -> None:
        if self._accepted > self._bounds.connections:
            raise UsedUp(f"all {self._bounds.connections} connections of this program are used up")
        if self._bytes_left() <= 0:
            raise UsedUp(f"all {self._bounds.total_bytes} bytes of this program are used up")

    async def _look_up(self, request: ProxyRequest) -> Sequence[str]:
        known = self._rules.hosts.get(request.host)
        if known is not None:
            return known
        async with self._lookups:
            return await self._resolve(request.host, request.port)

    async def _connect_to_one(self, request: ProxyRequest, addresses: Sequence[str]) -> socket.socket:
        for address in dict.fromkeys(addresses):
            upstream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            try:
                upstream.setblocking(False)
                async with asyncio.timeout(self._bounds.connect_seconds / len(addresses)):
                    await self._loop.sock_connect(upstream, (address, request.port))
            except (OSError, TimeoutError):
                upstream.close()
            except BaseException:
                upstream.close()
                raise
            else:
                return upstream
        raise Unreached(f"{request.host}:{request.port} does not answer")

    # ---- relaying

    async def _relay(self, request: ProxyRequest, peer: socket.socket, upstream: socket.socket) -> None:
        """Copy both ways until both ends have finished, or nothing has moved for `idle_seconds`."""
        for end in (peer, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(self._bounds.idle_seconds) as clock:
            self._count(len(request.opening), 0)
            await self._loop.sock_sendall(peer, request.granted())
            await self._loop.sock_sendall(upstream, request.opening)
            pumps = [
                self._loop.create_task(self._pump(peer, upstream, clock, is_outward=True)),
                self._loop.create_task(self._pump(upstream, peer, clock, is_outward=False)),
            ]
            try:
                await asyncio.gather(*pumps)
            finally:
                await cancel_all(pumps)

    async def _pump(
        self, source: socket.socket, target: socket.socket, clock: asyncio.Timeout, *, is_outward: bool
    ) -> None:
        while piece := await self._loop.sock_recv(source, _PIECE_BYTES):
            self._count(len(piece) if is_outward else 0, 0 if is_outward else len(piece))
            await self._loop.sock_sendall(target, piece)
            clock.reschedule(self._loop.time() + self._bounds.idle_seconds)
        target.shutdown(socket.SHUT_WR)

    def _count(self, sent_bytes: int, received_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes
        if self._bytes_left() < 0:
            raise UsedUp

    def _bytes_left(self) -> int:
        return self._bounds.total_bytes - self._sent_bytes - self._received_bytes


def _abort(end: socket.socket) -> None:
    """Reset a connection, so that the other side can tell it from one that is complete."""
    _libc.connect(end.fileno(), bytes(16), 16)  # to AF_UNSPEC: seccomp does not let us set SO_LINGER


def resolver(threads: Executor) -> Resolve:
    """Return a function that resolves names with the machine's own resolver, in these threads."""

    def ask(host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return [str(each[4][0]) for each in found]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(threads, ask, host, port)

    return resolve
