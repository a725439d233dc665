"""Memory for answers: programs wait for it, and a batch stops where no more results can be kept."""

from __future__ import annotations

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_server import JSON, Answer, Server, Start

MIB = 1024 * 1024


def _writes(size: int, seconds: float = 0.0) -> dict[str, Any]:
    code = f"import time\ntime.sleep({seconds})\nopen('a', 'wb').write(bytes({size}))"
    return {"code": code, "artifacts": ["a"]}


def _execute_from(server: Server, address: str, asked: dict[str, Any]) -> Answer:
    """As another caller: without keys, each address is one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request("POST", "/v1/execute", json.dumps(asked), JSON)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


@pytest.mark.parametrize("room_bytes", [128 * MIB, 512 * MIB])
def test_programs_with_artifacts_wait_for_room(start: Start, room_bytes: int) -> None:
    with start(server__bodies_bytes=room_bytes) as server, ThreadPoolExecutor(40) as clients:
        asked = _writes(2, seconds=0.1)
        answers = list(clients.map(lambda _: server.ask("POST", "/v1/execute", asked), range(40)))
        assert [each.status for each in answers] == [200] * 40, {each.content[:300] for each in answers}
        assert {each.body["artifacts"][0]["bytes"] for each in answers} == {2}


def test_programs_with_artifacts_leave_room_for_other_callers(start: Start, host: Any) -> None:
    settings = {"server__bodies_bytes": 512 * MIB, "pool__max_running": 12}
    with start(**settings) as server, ThreadPoolExecutor(8) as clients:
        asked = _writes(2, seconds=3)
        eight = [clients.submit(_execute_from, server, f"127.0.0.{2 + number}", asked) for number in range(8)]
        host.wait_until(lambda: b"\nbelljar_running 8" in server.ask("GET", "/metrics").content, "all have their turn")
        ninth = _execute_from(server, "127.0.0.20", {"code": "print(1)"})
        assert ninth.status == 200, ninth.content
        assert ninth.body["stdout"] == "1\n"
        assert not any(each.done() for each in eight), "the others were still running"
        assert [each.result().status for each in eight] == [200] * 8


def test_a_batch_with_artifacts_fits_into_little_room(start: Start) -> None:
    with start(server__bodies_bytes=128 * MIB) as server:
        answer = server.ask("POST", "/v1/batch", {"executions": [_writes(200_000)] * 3})
        assert answer.status == 200, answer.content[:300]
        assert [each["artifacts"][0]["bytes"] for each in answer.body["results"]] == [200_000] * 3


def test_nothing_is_begun_after_a_result_that_is_not_kept(start: Start) -> None:
    """Each fits alone; two do not. Those that ran count as what they were, whether kept or not."""
    with start(server__batch_bytes=MIB, pool__max_running=1) as server:
        one = _writes(600_000)
        failing = {**one, "code": one["code"] + "\nraise SystemExit(1)"}
        body = server.ask("POST", "/v1/batch", {"executions": [one, failing, *[one] * 6]}).body
        verdicts = [each.get("verdict", each.get("status")) for each in body["results"]]
        assert verdicts == ["ok", "not_kept", *["not_run"] * 6]
        assert (body["passed"], body["failed"]) == (1, 1)
