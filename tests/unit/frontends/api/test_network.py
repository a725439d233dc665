"""A network over HTTP: who may have it, for which calls, and what is told of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from local_web import LocalWeb, serving

from belljar.client import Client

if TYPE_CHECKING:
    from api_server import Server, Start


class Offering(NamedTuple):
    """A server that offers a network, and what it is offered to reach."""

    server: Server
    web: LocalWeb
    granted: str  # a key that may
    plain: str  # one that may not

    @property
    def program(self) -> str:
        return (
            f"import urllib.request\nprint(urllib.request.urlopen('http://in.test:{self.web.port}/').read().decode())"
        )


@pytest.fixture(scope="module")
def offering(
    start: Start, command: list[str], environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Offering]:
    keys_file = tmp_path_factory.mktemp("network") / "keys.json"

    def make_key(*words: str) -> str:
        variables = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(keys_file)}
        done = subprocess.run([*command, "key", "create", *words], env=variables, capture_output=True, text=True)
        return done.stdout.strip()

    granted, plain = make_key("granted", "--network"), make_key("plain")
    with (
        serving() as web,
        start(
            server__keys_file=Path(keys_file),
            network__offered="true",
            network__hosts="in.test=127.0.0.1",
            network__allow_private=f"in.test:{web.port}",
            mcp__network="true",
        ) as server,
    ):
        yield Offering(server, web, granted, plain)


def test_a_program_of_a_key_that_may(offering: Offering) -> None:
    answer = offering.server.execute(offering.program, key=offering.granted, network=True).body
    assert (answer["status"], answer["stdout"]) == ("ok", "hello\n"), answer["stderr"]
    used = answer["usage"]["network"]
    assert set(used) == {"connections", "refused", "sent_bytes", "received_bytes"}
    assert (used["connections"], used["refused"]) == (1, 0)
    with Client(f"http://{offering.server.host}", api_key=offering.granted) as client:
        seen = client.run(offering.program, network=True).usage.network
    assert seen is not None
    assert seen.as_json() == used
    without = offering.server.execute(offering.program, key=offering.granted).body
    assert without["status"] == "failed"
    assert "network" not in without["usage"]


def test_a_batch_and_a_session_of_a_key_that_may(offering: Offering) -> None:
    server, key = offering.server, offering.granted
    batch = {"code": offering.program, "network": True, "cases": [{"expected_stdout": "hello\n"}] * 2}
    assert server.ask("POST", "/v1/batch", batch, key=key).body["passed"] == 2
    opened = server.ask("POST", "/v1/sessions", {"network": True}, key=key)
    assert opened.status == 201
    where = f"/v1/sessions/{opened.body['id']}"
    assert server.ask("POST", f"{where}/execute", {"code": offering.program}, key=key).body["stdout"] == "hello\n"
    assert server.ask("DELETE", where, key=key).status < 300


@pytest.mark.parametrize("path", ["/v1/execute", "/v1/batch", "/v1/sessions"])
def test_a_key_that_may_not_is_403(offering: Offering, path: str) -> None:
    body = {"network": True} if path == "/v1/sessions" else {"code": "1", "network": True}
    if path == "/v1/batch":
        body = {"executions": [body]}
    refused = offering.server.ask("POST", path, body, key=offering.plain)
    assert (refused.status, refused.code) == (403, "not_allowed")


def test_info_shows_each_caller_its_own_network_right(offering: Offering) -> None:
    def network_state(key: str) -> str:
        state: str = offering.server.ask("GET", "/v1/info", key=key).body["isolation"]["network"]["state"]
        return state

    assert (network_state(offering.granted), network_state(offering.plain)) == ("off", "on")


def test_over_mcp_the_key_decides_too(offering: Offering) -> None:
    revision = "2026-07-28"
    words = {"protocolVersion": revision, "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    params = {
        "name": "run_code",
        "arguments": {"code": offering.program},
        "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in words.items()},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": revision,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "run_code",
    }

    def run(key: str) -> str:
        answer = offering.server.ask("POST", "/mcp", request, headers, key=key)
        assert answer.status == 200
        return answer.content.decode()

    assert "hello" in run(offering.granted)
    assert "URLError" in run(offering.plain)


def test_metrics_count_what_went_through(offering: Offering) -> None:
    offering.server.execute(offering.program, key=offering.granted, network=True)
    lines = offering.server.ask("GET", "/metrics", key=offering.granted).content.decode().splitlines()
    counted = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert counted["belljar_network_connections_total"] >= 1
    assert counted["belljar_network_received_bytes_total"] > 0
