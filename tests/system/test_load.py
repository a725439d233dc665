"""Many requests over persistent connections: every response is right, and nothing grows."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from api_server import JSON, Server, Start

CONNECTIONS = 8
REQUESTS = 60  # on each connection
_DEADLINE_SECONDS = 60.0


def test_nothing_grows_and_every_answer_is_right(start: Start) -> None:
    with start(pool__jail_seconds=0.2) as server:  # otherwise jails created under load are kept and hold descriptors
        server.ask(
            "POST", "/mcp", {}
        )  # otherwise the server loads the MCP SDK (20 MB) in the background while the test counts
        for _ in range(2):  # growth that happens once, under the first load, is over now
            _load(server)
        before = _resident_kilobytes(server), _settled_descriptors(server)
        _load(server)
        assert _resident_kilobytes(server) - before[0] < 4_000
        assert _settled_descriptors(server) - before[1] <= CONNECTIONS


def _load(server: Server) -> None:
    wrong: list[object] = []

    def work(worker: int) -> None:
        with contextlib.closing(server.connect()) as connection:
            for number in range(REQUESTS):
                said = f"{worker}/{number}"
                connection.request("POST", "/v1/execute", json.dumps({"code": f"print({said!r})"}), JSON)
                body = json.loads(connection.getresponse().read())
                if body.get("stdout") != f"{said}\n":
                    wrong.append(body)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong


def _resident_kilobytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _settled_descriptors(server: Server) -> int:
    """Count open descriptors once unused jails are closed and guests are ready again: no change for a second."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    seen, since = _descriptors(server), time.monotonic()
    while time.monotonic() - since < 1.0:
        assert time.monotonic() < deadline, "what is open goes on changing"
        time.sleep(0.05)
        now = _descriptors(server)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def _descriptors(server: Server) -> int:
    """Count all but those of cgroups: as many unused jails are kept as there are ready guests."""
    count = 0
    for each in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += not os.readlink(each).startswith("/sys/fs/cgroup/")
    return count
