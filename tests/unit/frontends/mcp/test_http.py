"""/mcp behind the checks of the HTTP server: keys, hosts, origins, quotas. Disconnecting ends the program."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from belljar.frontends.access.keys import Key
from tests.unit.frontends.mcp.conftest import OlderClient

if TYPE_CHECKING:
    from server_process import Serve

    from tests.conftest import Host
    from tests.unit.frontends.mcp.conftest import Site

KERNELS = "/ai/sandbox/v1/mcp/"
WAITS = "import subprocess; subprocess.run(['sleep', '98.765'])"  # a command line that the host can recognise


def test_a_request_needs_no_handshake(site: Site) -> None:
    assert site.call("run_code", {"code": "print(6 * 7)"})["content"][0]["text"] == "42"


def test_startup_does_not_wait_for_the_sdk(sources: Path) -> None:
    """No module that the command imports before it listens imports the SDK."""
    look = "import sys, belljar.frontends.cli.serve, belljar.frontends.api.server, belljar.frontends.mcp.http"
    look += "; print(*{'mcp', 'pydantic_core', 'belljar.frontends.api.server'}.intersection(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", look], env={"PYTHONPATH": str(sources)}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["belljar.frontends.api.server"]


def test_the_sdk_is_loaded_before_the_first_request(open_site: Serve, host: Host) -> None:
    with open_site() as site:
        maps = Path(f"/proc/{site.process.pid}/maps")
        host.wait_until(lambda: "pydantic_core" in maps.read_text(), "the SDK is being imported", 60)
        assert site.call("run_code", {"code": "print(1)"})["content"][0]["text"] == "1"


def test_the_path_that_kernel_clients_know_is_served(site: Site) -> None:
    status, answer = site.post("tools/list", path=KERNELS)
    assert status == 200
    assert answer["result"]["tools"][0]["name"] == "run_code"


def test_an_older_request_to_that_path_needs_no_handshake(site: Site) -> None:
    """Nor does it need the header that names a revision."""
    headers = {"Accept": "application/json, text/event-stream"}

    def ask(method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = site.ask("POST", KERNELS, message, headers)
        assert (answer.status, answer.headers.get("mcp-session-id")) == (200, None), answer
        return json.loads(answer.text.rpartition("data: ")[2])["result"]

    assert ask("tools/list", {})["tools"][0]["name"] == "run_code"
    for code, said in (("x = 42", ""), ("print(x)", "42\n")):  # sessions are named by an argument
        arguments = {"code": code, "session_id": "kept"}
        result = ask("tools/call", {"name": "execute_python_code", "arguments": arguments})
        assert json.loads(result["content"][0]["text"])["output"] == said
    ask("tools/call", {"name": "terminate_session", "arguments": {"session_id": "kept"}})


def test_an_older_client_of_that_path_gets_no_session(site: Site) -> None:
    client = OlderClient(site, "2025-11-25", KERNELS)
    assert "Mcp-Session-Id" not in client.headers
    assert client.ask("tools/list")[0] == 200
    for method in ("GET", "DELETE"):
        refused = site.ask(method, KERNELS, headers={**client.headers, "Accept": "text/event-stream"})
        assert (refused.status, refused.headers["allow"]) == (405, "POST")


def test_paths_below_it_do_not_exist(site: Site) -> None:
    status, answer = site.post("tools/list", path="/mcp/more")
    assert (status, answer["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({"Host": "evil.example"}, "host_not_allowed", id="name_that_was_made_to_point_here"),
        pytest.param({"Origin": "https://evil.example"}, "origin_not_allowed", id="page_of_another_origin"),
    ],
)
def test_host_and_origin_are_checked(site: Site, headers: dict[str, str], code: str) -> None:
    status, answer = site.post("tools/list", **headers)
    assert (status, answer["error"]["code"]) == (403, code)


def test_a_body_must_be_json(site: Site) -> None:
    status, answer = site.post("tools/list", Content__Type="text/plain")
    assert (status, answer["error"]["code"]) == (400, "not_json")


def test_a_key_is_required_if_the_server_has_keys(open_site: Serve) -> None:
    with open_site(server__api_key="secret") as site:
        status, answer = site.post("tools/list")
        assert (status, answer["error"]["code"]) == (401, "unauthorized")
        status, _ = site.post("tools/list", Authorization="Bearer wrong")
        assert status == 401
        status, answer = site.post("tools/list", Authorization="Bearer secret")
        assert status == 200
        assert answer["result"]["tools"]


def test_a_body_that_is_too_large_is_refused(open_site: Serve) -> None:
    with open_site(server__body_bytes=100_000, server__bodies_bytes=200_000) as site:
        status, answer = site.post("tools/call", {"name": "run_code", "arguments": {"code": "#" * 200_000}})
        assert (status, answer["error"]["code"]) == (413, "too_large")
        assert site.call("run_code", {"code": "print(1)"})["content"][0]["text"] == "1"


def test_limits_of_the_server_apply(open_site: Serve) -> None:
    with open_site(ceiling_limits__wall_seconds=5, default_limits__wall_seconds=1) as site:
        result = site.call("run_code", {"code": "print(1)", "timeout": 60})
        assert result["isError"] is True
        assert "at most 5 seconds" in result["content"][0]["text"]
        result = site.call("run_code", {"code": "while True: pass"})
        assert result["structuredContent"]["status"] == "timed_out"


@pytest.mark.parametrize(
    ("revision", "path"), [("2025-06-18", "/mcp"), ("2025-06-18", KERNELS), ("2026-07-28", "/mcp")]
)
def test_disconnecting_ends_the_program(site: Site, host: Host, revision: str, path: str) -> None:
    arguments = {"name": "run_code", "arguments": {"code": WAITS, "timeout": 120}}
    if revision == "2026-07-28":
        connection = site.send("tools/call", arguments)
    else:
        connection = OlderClient(site, revision, path).open("tools/call", arguments)
    host.wait_until(lambda: _runs(host), "the program runs")
    connection.close()
    host.wait_until(lambda: not _runs(host), "the program is gone", 10)
    assert site.call("run_code", {"code": "print(1)"})["isError"] is False


def test_an_older_client_can_cancel_its_call(site: Site, host: Host) -> None:
    session = OlderClient(site, "2025-11-25")
    connection = session.open("tools/call", {"name": "run_code", "arguments": {"code": WAITS, "timeout": 120}}, 9)
    host.wait_until(lambda: _runs(host), "the program runs")
    assert session.ask("notifications/cancelled", {"requestId": 9}, None)[0] == 202
    host.wait_until(lambda: not _runs(host), "the program is gone", 10)
    connection.close()


def test_an_older_session_belongs_to_the_key_that_opened_it(open_site: Serve) -> None:
    with open_site(server__api_key="operator-key") as site:
        keys = site.keys
        other = keys.create(Key(name="other"))
        try:
            session = OlderClient(site, "2025-11-25", Authorization="Bearer operator-key")
            assert session.ask("tools/list")[0] == 200
            session.headers["Authorization"] = f"Bearer {other}"
            assert session.ask("tools/list")[0] == 404
        finally:
            keys.revoke("other")


def test_open_streams_do_not_delay_the_shutdown(open_site: Serve) -> None:
    with open_site(server__grace_seconds=30) as site:
        session = OlderClient(site, "2025-11-25")
        stream = site.connect()
        with contextlib.closing(stream):
            stream.request("GET", "/mcp", headers={**session.headers, "Accept": "text/event-stream"})
            assert stream.getresponse().status == 200
            began = time.monotonic()
            site.process.send_signal(signal.SIGTERM)
            assert site.process.wait(60) == 0
            assert time.monotonic() - began < 15


def test_a_deleted_session_no_longer_exists(site: Site) -> None:
    session = OlderClient(site, "2025-11-25")
    connection = site.connect()
    with contextlib.closing(connection):
        connection.request("DELETE", "/mcp", headers=session.headers)
        assert connection.getresponse().status == 200
    assert session.ask("tools/list")[0] == 404


def test_an_exceeded_quota_is_reported_to_the_model(open_site: Serve) -> None:
    with open_site(server__api_key="operator-key") as site:
        keys = site.keys
        text = keys.create(Key(name="slow", requests_per_minute=1))
        try:
            bearer = f"Bearer {text}"
            assert site.call("run_code", {"code": "print(1)"}, Authorization=bearer)["isError"] is False
            refused = site.call("run_code", {"code": "print(1)"}, Authorization=bearer)
            assert refused["isError"] is True
            assert "1 requests per minute" in refused["content"][0]["text"]
        finally:
            keys.revoke("slow")


def _runs(host: Host) -> list[Any]:
    return [process for process in host.guest_processes() if process.command == "sleep 98.765"]
