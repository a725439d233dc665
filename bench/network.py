"""Measure what a network costs a program: beside programs without one, and beside the same bytes over plain loopback.

    python bench/network.py            # half a minute; prints a table
    python bench/network.py --quick    # tiny counts: proves that it works, measures nothing

Rounds alternate, so that a slow moment of the machine hits both. Only ratios are worth comparing between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import socket
import statistics
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

import belljar
from belljar.settings import NetworkSettings, load

_HELLO = "print(1)"
_FETCH = """
import os, socket, time, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
way = socket.create_connection((proxy.hostname, proxy.port))
way.sendall(b"CONNECT bench.test:{port} HTTP/1.1\\r\\n\\r\\n")
taken, began, room = 0, time.perf_counter(), bytearray(1 << 20)
while more := way.recv_into(room):
    taken += more
print(taken / (time.perf_counter() - began))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what a network costs a program.")
    parser.add_argument("--quick", action="store_true", help="tiny counts: proves that it works, measures nothing")
    is_quick = parser.parse_args().quick
    rounds, bytes_sent = (3, 1 << 20) if is_quick else (200, 512 << 20)
    with _pouring(bytes_sent) as port:
        network = NetworkSettings(
            offered=True,
            hosts=("bench.test=127.0.0.1",),
            allow_private=(f"bench.test:{port}",),
            total_bytes=8 << 30,
        )
        with belljar.Sandbox(settings=dataclasses.replace(load(), network=network)) as box:
            plain, networked = _latencies(box, rounds)
            speeds = [_relayed(box, port) for _ in range(1 if is_quick else 3)]
        direct = [_drain(port) for _ in range(1 if is_quick else 3)]
    table = Table(title="A network for a program", title_justify="left")
    for title in ("", "without", "with", "ratio"):
        table.add_column(title)
    for name, pick in (("hello, median", statistics.median), ("hello, best", min)):
        a, b = pick(plain), pick(networked)
        table.add_row(name, f"{a * 1e3:.2f} ms", f"{b * 1e3:.2f} ms", f"{b / a:.2f}")
    a, b = max(direct), max(speeds)
    table.add_row("bytes a second, best", f"{a / 1e6:,.0f} MB", f"{b / 1e6:,.0f} MB", f"{b / a:.2f}")
    Console().print(table)


def _latencies(box: belljar.Sandbox, rounds: int) -> tuple[list[float], list[float]]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    box.run(_HELLO, network=True)  # starts the egress process
    for _ in range(rounds):
        for has_network, taken in seconds.items():
            time.sleep(0.01)  # guests are forked ahead; that time is not measured here
            began = time.perf_counter()
            box.run(_HELLO, network=has_network)
            taken.append(time.perf_counter() - began)
    return seconds[False], seconds[True]


def _relayed(box: belljar.Sandbox, port: int) -> float:
    outcome = box.run(_FETCH.format(port=port), network=True, timeout=60)
    return float(outcome.stdout)


def _drain(port: int) -> float:
    taken, room = 0, bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as way:
        began = time.perf_counter()
        while more := way.recv_into(room):
            taken += more
    return taken / (time.perf_counter() - began)


@contextlib.contextmanager
def _pouring(bytes_sent: int) -> Iterator[int]:
    """A server that sends a number of bytes to every client."""
    piece = bytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer, contextlib.suppress(OSError):
                        for _ in range(bytes_sent // len(piece)):
                            peer.sendall(piece)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
