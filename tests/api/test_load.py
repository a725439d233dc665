"""Many requests over kept connections: every answer right, and nothing grows."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

from .conftest import JSON, Server, Start

CONNECTIONS = 8
REQUESTS = 60  # on each connection


def test_nothing_grows_and_every_answer_is_right(start: Start) -> None:
    with start(pool__cell_seconds=0.2) as server:  # else cells that the load needed are kept, and hold descriptors
        for _ in range(2):  # whatever grows once, with the first load, is warm now
            _load(server)
        before = _resident_kilobytes(server), _fewest_descriptors(server)
        _load(server)
        assert _resident_kilobytes(server) - before[0] < 4_000
        assert _fewest_descriptors(server) - before[1] <= CONNECTIONS


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


def _fewest_descriptors(server: Server) -> int:
    """How many are open once nothing runs: within two seconds the cells of the load have been given up."""
    fewest = _descriptors(server)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        time.sleep(0.05)
        fewest = min(fewest, _descriptors(server))
    return fewest


def _descriptors(server: Server) -> int:
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())
