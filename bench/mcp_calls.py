"""What MCP costs: a tool call at /mcp beside /v1/execute, on one server, in one run.

Not called mcp.py: a script's own directory comes first on the module search path, and `mcp` is the SDK.

    python bench/mcp_calls.py [--calls 1000] [--rounds 5] [--output-dir docs] [--quick]

One client on one kept-alive connection for each way, taking turns call by call, so that both see the same machine. The
client is the standard library's for all of them: only the server differs. Every answer is checked.
Writes the part of mcp.md between its markers and mcp-performance.json, and exits with 1 when either revision adds more
than the target at the median.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from http_server import start
from report import replace_between_markers

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_COMMAND = [sys.executable, "-m", "belljar", "serve", "--port", "{port}"]
CODE = "x=5\nprint(x)"
TARGET_MS = 2.0
NEWEST = "2026-07-28"
OLDER = "2025-11-25"
_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class Way:
    """One way to have a program run."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.times_ms: list[float] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = dict(_JSON)
        self.path = "/mcp"
        self.body = b""

    def send(self, body: bytes, headers: dict[str, str] | None = None) -> tuple[bytes, http.client.HTTPMessage]:
        """Send one request and read the complete response."""
        self._connection.request("POST", self.path, body, {**self._headers, **(headers or {})})
        response = self._connection.getresponse()
        content = response.read()
        assert response.status in (200, 202), content
        return content, response.headers

    def call(self) -> None:
        """One program, timed."""
        began = time.perf_counter()
        content, _ = self.send(self.body)
        self.times_ms.append((time.perf_counter() - began) * 1000)
        assert b'"5' in content, content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def plain(port: int) -> Way:
    """POST /v1/execute."""
    way = Way(port, "/v1/execute")
    way.path = "/v1/execute"
    way.body = json.dumps({"code": CODE}).encode()
    return way


def newest(port: int) -> Way:
    """A client that needs no handshake."""
    way = Way(port, f"/mcp, {NEWEST}")
    way._headers |= {"MCP-Protocol-Version": NEWEST, "Mcp-Method": "tools/call", "Mcp-Name": "run_code"}
    envelope = {
        "io.modelcontextprotocol/protocolVersion": NEWEST,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    way.body = _message("tools/call", {"name": "run_code", "arguments": {"code": CODE}, "_meta": envelope})
    return way


def older(port: int) -> Way:
    """A client that has done the handshake and reads responses from an event stream."""
    way = Way(port, f"/mcp, {OLDER}")
    client = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    _, headers = way.send(_message("initialize", client))
    way._headers |= {"MCP-Protocol-Version": OLDER, "Mcp-Session-Id": headers["mcp-session-id"]}
    way.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
    way.body = _message("tools/call", {"name": "run_code", "arguments": {"code": CODE}})
    return way


def _message(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def measure(calls: int, rounds: int) -> dict[str, Any]:
    """Measure in turns; the first round only warms up."""
    with start("belljar", _COMMAND) as server, contextlib.ExitStack() as stack:
        ways = [make(server.port) for make in (plain, newest, older)]
        for way in ways:
            stack.callback(way.close)
        for number in range(rounds + 1):
            for _ in range(calls if number else max(20, calls // 10)):
                for way in ways:
                    way.call()
            if not number:
                for way in ways:
                    way.times_ms.clear()
    table = {way.name: _summarize(way.times_ms) for way in ways}
    base = table[ways[0].name]["p50_ms"]
    for each in table.values():
        each["added_ms"] = round(each["p50_ms"] - base, 3)
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "calls": calls * rounds,
        "ways": table,
        "target_added_ms": TARGET_MS,
        "is_met": all(each["added_ms"] <= TARGET_MS for each in table.values()),
    }


def _summarize(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        "p50_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 3),
        "min_ms": round(ordered[0], 3),
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output-dir", type=Path, default=_DOCS)
    parser.add_argument("--quick", action="store_true", help="tiny counts, nothing is written: proves that it works")
    options = parser.parse_args()
    if options.quick:
        options.calls, options.rounds = 30, 1
    report = measure(options.calls, options.rounds)
    print(markdown(report))
    if options.quick:
        return 0
    options.output_dir.mkdir(parents=True, exist_ok=True)
    replace_between_markers(options.output_dir / "mcp.md", "mcp", markdown(report))
    (options.output_dir / "mcp-performance.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["is_met"] else 1


def markdown(report: dict[str, Any]) -> str:
    """The table."""
    lines = ["| way | p50 ms | p99 ms | adds at the median, ms | verdict |", "| --- | ---: | ---: | ---: | --- |"]
    for name, each in report["ways"].items():
        verdict = "met" if each["added_ms"] <= report["target_added_ms"] else "NOT met"
        numbers = f"{each['p50_ms']:.2f} | {each['p99_ms']:.2f} | {each['added_ms']:.2f}"
        lines.append(f"| {name} | {numbers} | {verdict if each['added_ms'] else ''} |")
    lines += [
        "",
        f"Target: at most {report['target_added_ms']:g} ms. {report['calls']:,} calls of each way, taking turns on one "
        f"server, on {report['cores']} cores, {report['when']}; load average at the end {report['load_average']:.1f}. "
        "`python bench/mcp_calls.py`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
