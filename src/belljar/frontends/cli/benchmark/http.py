"""`belljar bench http URL`: puts a server under load and charts its latency and throughput.

Works with the native API and with X-Master's (`/execute`). One process sends requests over many connections and checks
every response. It is written in Python, so beyond a few thousand requests per second it becomes the bottleneck;
`bench/pressure.sh` uses wrk instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from belljar.contract.errors import CallerError
from belljar.frontends.cli import terminal

_CODE = "x = 5\nprint(x)"
_EXPECTED = "5\n"
_SLICES = 40
_BLOCKS = " ▁▂▃▄▅▆▇█"
_PERCENTILES = (50, 75, 90, 99)


@dataclass(slots=True, kw_only=True)
class Load:
    """The responses that arrived, with their times."""

    seconds: float
    connections: int
    answers: list[tuple[float, float]] = field(default_factory=list)  # (seconds since the start, latency in seconds)
    wrong: int = 0
    failed: int = 0

    def as_json(self) -> dict[str, Any]:
        taken = [each for _, each in self.answers]
        cuts = statistics.quantiles(taken, n=100) if len(taken) > 1 else (taken or [0.0]) * 99
        return {
            "connections": self.connections,
            "seconds": self.seconds,
            "answers": len(taken),
            "answers_per_second": len(taken) / self.seconds,
            "wrong": self.wrong,
            "failed": self.failed,
            **{f"p{each}_seconds": cuts[each - 1] for each in _PERCENTILES},
            "max_seconds": max(taken, default=0.0),
        }

    def rates(self) -> list[float]:
        """Responses per second in each of `_SLICES` equal intervals."""
        counts = [0] * _SLICES
        for moment, _ in self.answers:
            counts[min(_SLICES - 1, int(moment / self.seconds * _SLICES))] += 1
        return [count * _SLICES / self.seconds for count in counts]


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default="http://127.0.0.1:8000/v1/execute",
        help="where to send requests (default path: /v1/execute)",
    )
    parser.add_argument("--connections", metavar="N", type=int, default=100)
    parser.add_argument("--seconds", metavar="N", type=float, default=10.0)
    parser.add_argument("--session", metavar="ID", help="with X-Master's API: run everything in this session")
    parser.add_argument("--key", metavar="KEY", help="the API key of the server")
    parser.add_argument("--plot", metavar="FILE", help="also save a chart to this file (needs matplotlib)")


def execute(options: argparse.Namespace) -> int:
    if options.connections < 1 or not options.seconds > 0:
        raise CallerError("--connections and --seconds must be greater than 0")
    load = asyncio.run(_apply_load(options))
    if options.json:
        print(json.dumps({**load.as_json(), "rates": load.rates()}, indent=2))
    else:
        _draw(load, options.url)
    if options.plot:
        _plot(load, options.url, Path(options.plot))
    if not load.answers:
        raise CallerError(f"no response from {options.url}; is the server running?")
    return 1 if load.wrong or load.failed else 0


async def _apply_load(options: argparse.Namespace) -> Load:
    load = Load(seconds=options.seconds, connections=options.connections)
    request, host, port = _build_request(options)
    began = time.perf_counter()
    workers = [_request_on(load, request, host, port, began) for _ in range(options.connections)]
    await asyncio.gather(*workers)
    return load


def _build_request(options: argparse.Namespace) -> tuple[bytes, str, int]:
    parts = urlsplit(options.url)
    if parts.scheme != "http" or not parts.hostname:
        raise CallerError(f"{options.url!r} is not an http:// URL")
    body: dict[str, str] = {"code": _CODE}
    if options.session:
        body["session_id"] = options.session
    content = json.dumps(body).encode()
    key = f"Authorization: Bearer {options.key}\r\n" if options.key else ""
    head = (
        f"POST {parts.path.rstrip('/') or '/v1/execute'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\n{key}Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content, parts.hostname, parts.port or 80


async def _request_on(load: Load, request: bytes, host: str, port: int, began: float) -> None:
    """Send requests over one connection until the time is up or the connection breaks."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(host, port)
        while (sent := time.perf_counter()) - began < load.seconds:
            writer.write(request)
            answer = await _read_answer(reader)
            now = time.perf_counter()
            if now - began > load.seconds:
                break
            load.answers.append((now - began, now - sent))
            if answer.get("stdout", answer.get("output")) != _EXPECTED:
                load.wrong += 1
    except (OSError, ValueError, asyncio.IncompleteReadError):
        load.failed += 1
    finally:
        if writer is not None:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
    answer = json.loads(await reader.readexactly(size))
    return answer if isinstance(answer, dict) else {}


def _draw(load: Load, url: str) -> None:
    seen = load.as_json()
    rows = [
        ("answers per second", f"{seen['answers_per_second']:.0f}"),
        *((f"p{each} ms", f"{seen[f'p{each}_seconds'] * 1e3:.1f}") for each in _PERCENTILES),
        ("slowest ms", f"{seen['max_seconds'] * 1e3:.1f}"),
        ("answers / wrong / connections lost", f"{seen['answers']} / {seen['wrong']} / {seen['failed']}"),
    ]
    title = f"{url}, {load.connections} connections, {load.seconds:g} s"
    terminal.draw_table(terminal.console(), title, ["", ""], [list(row) for row in rows])
    rates = load.rates()
    print(f"\nanswers per second, over the {load.seconds:g} s (to {max(rates):.0f})\n{_bars(rates)}")
    counts, edges = _histogram([taken * 1e3 for _, taken in load.answers])
    print(f"\nlatency, {edges[0]:.1f} to {edges[1]:.1f} ms\n{_bars(counts)}")


def _bars(values: list[float]) -> str:
    most = max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(8, round(each / most * 8))] for each in values)


def _histogram(values: list[float]) -> tuple[list[float], tuple[float, float]]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    counts = [0.0] * _SLICES
    for each in values:
        counts[min(_SLICES - 1, int((each - low) / (high - low or 1.0) * _SLICES))] += 1
    return counts, (low, high)


def _plot(load: Load, url: str, path: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise CallerError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6))
    above.plot([load.seconds * (each + 0.5) / _SLICES for each in range(_SLICES)], load.rates())
    above.set(xlabel="seconds", ylabel="answers per second", title=f"{url}, {load.connections} connections")
    above.set_ylim(bottom=0)
    below.hist([taken * 1e3 for _, taken in load.answers], bins=60)
    below.set(xlabel="latency in ms", ylabel="answers")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
