"""Every row of the table of errors, and that each names the field and tells nothing about the server."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from api_server import JSON, Server, Start, take_answer

NESTED = b"[" * 200_000


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b"", 400, "not_json", id="nothing"),
        pytest.param(b"{", 400, "not_json", id="truncated"),
        pytest.param(b'{"code": "1"} x', 400, "not_json", id="something_after_it"),
        pytest.param(b'{"code": "\xff"}', 400, "not_json", id="invalid_utf8"),
        pytest.param(b'{"code": "\\ud800"}', 400, "not_json", id="lone_surrogate"),
        pytest.param(b'{"code": "1", "timeout": NaN}', 400, "not_json", id="nan"),
        pytest.param(NESTED, 400, "not_json", id="nesting_bomb"),
        pytest.param(b'{"code": "1", "restrict": ' + NESTED, 400, "not_json", id="nesting_bomb_in_a_field"),
        pytest.param(b'{"code": 1, "language": ', 400, "not_json", id="broken_after_a_wrong_type"),
        pytest.param(b"[]", 422, "invalid_request", id="not_an_object"),
        pytest.param(b"{}", 422, "invalid_request", id="no_code"),
        pytest.param(b'{"code": 1}', 422, "invalid_request", id="wrong_type"),
        pytest.param(b'{"code": "  \\n"}', 422, "invalid_execution", id="blank_code"),
        pytest.param(b'{"code": "1", "privileged": true}', 422, "invalid_request", id="unknown_field"),
        pytest.param(b'{"code": "1", "timeout": 1e999}', 422, "invalid_request", id="infinite"),
        pytest.param(b'{"code": "1", "timeout": ' + b"9" * 400_000 + b"}", 422, "invalid_request", id="huge_integer"),
        pytest.param(b'{"code": "1", "timeout": 100000}', 422, "limit_above_ceiling", id="above_the_ceiling"),
        pytest.param(b'{"code": "1", "timeout": -1}', 422, "invalid_request", id="negative"),
        pytest.param(b'{"code": "1", "timeout": true}', 422, "invalid_request", id="bool_is_no_number"),
        pytest.param(
            b'{"code": "1", "timeout": 1, "limits": {"wall_seconds": 2}}', 422, "invalid_execution", id="disagree"
        ),
        pytest.param(b'{"code": "1", "language": "brainfuck"}', 422, "unknown_language", id="unknown_language"),
        pytest.param(b'{"code": "1", "environment": "../x"}', 422, "unknown_environment", id="bad_environment"),
        pytest.param(b'{"code": "1", "files": [{"path": "../x"}]}', 422, "unsafe_path", id="unsafe_path"),
        pytest.param(
            b'{"code": "1", "files": [{"path": "x", "content": "?", "encoding": "base64"}]}',
            *(422, "invalid_execution"),
            id="not_base64",
        ),
        pytest.param(b'{"code": "1", "network": true}', 422, "not_offered", id="network"),
        pytest.param(b'{"code": "1", "tools": ["web_search"]}', 422, "unknown_tool", id="tools"),
        pytest.param(b'{"code": "1", "coverage": {"branch": 1}}', 422, "invalid_request", id="coverage"),
        pytest.param(b'{"code": "1", "restrict": {"imports": [5]}}', 422, "invalid_request", id="restrict_type"),
        pytest.param(b'{"code": "1", "restrict": {"modules": []}}', 422, "invalid_request", id="restrict_field"),
        pytest.param(b'{"code": "1", "restrict": {"imports": ["a b"]}}', 422, "invalid_execution", id="restrict_name"),
        pytest.param(b'{"code": "' + b"1" * 2_100_000 + b'"}', 413, "too_large", id="body_over_the_limit"),
    ],
)
def test_bad_request_is_refused(server: Server, body: bytes, status: int, code: str) -> None:
    answer = server.ask("POST", "/v1/execute", body)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.body["error"]["message"].count("JSON") <= 2, "our message names it, and no library repeats it"
    assert "jSON" not in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(rb'{"code": "print(1) # \ud83d"}', "lone surrogate", id="half_a_character_at_the_end"),
        pytest.param(rb'{"code": "\ud83d: print(1)"}', "lone surrogate", id="half_a_character"),
        pytest.param(rb'{"code": "\ude00", "stdin": ""}', "lone surrogate", id="the_other_half"),
        pytest.param(rb'{"code": "\ud83d"', "truncated", id="truncated_after_it"),
        pytest.param(rb'{"code": "\ud83d\ud', "truncated", id="truncated_in_it"),
    ],
)
def test_message_says_why_it_is_not_json(server: Server, body: bytes, reason: str) -> None:
    answer = server.ask("POST", "/v1/execute", body)
    assert (answer.status, answer.code) == (400, "not_json")
    assert reason in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        pytest.param({"limits": {"wall": 1}}, ["limits", "'wall'", "wall_seconds"], id="unknown_inner_field"),
        pytest.param({"files": [{"path": "a"}, {"path": 5}]}, ["files[1].path", "string"], id="place_in_a_list"),
        pytest.param({"env": {"K": 5}}, ["env", "string"], id="value_of_a_mapping"),
        pytest.param({"files": [{"path": "a", "encoding": "x"}]}, ["files[0].encoding", "'x'"], id="choice"),
        pytest.param({"stdin": None}, ["stdin", "string"], id="null"),
    ],
)
def test_message_names_the_field(server: Server, asked: dict[str, Any], named: list[str]) -> None:
    answer = server.execute("1", **asked)
    assert answer.status == 422
    message = answer.body["error"]["message"]
    assert all(word in message for word in named), message


def test_code_over_its_own_limit_is_too_large(start: Start) -> None:
    with start(request__code_bytes=100) as server:
        answer = server.execute("1" * 101)
        assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize(
    "path",
    [
        *("/nope", "/v1", "/v1/execute/", "/v1/%65xecute/..", "//", "/v1/sessions/x/y", "/v1/sessions/x/files/"),
        *("/health%0A", "/mcp%0A", "/mcp/%0A", "/mcp/x%0Ay", "/v1/sessions//execute"),
    ],
)
def test_unknown_route_is_404(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")


def test_wrong_method_names_the_right_one(server: Server) -> None:
    answer = server.ask("GET", "/v1/execute")
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", "POST")
    assert server.ask("DELETE", "/health").status == 405


def test_full_queue_is_429_and_the_drained_one_503(start: Start) -> None:
    """One runs, one waits, the third is refused; then SIGTERM refuses the one that waits."""
    with start(pool__max_running=1, pool__max_queued=1, server__grace_seconds=0.5) as server:
        answers: list[Any] = []
        with server.streaming("import time; print(1, flush=True); time.sleep(60)", timeout=60) as response:
            assert json.loads(response.readline())["event"] == "started"
            waiter = threading.Thread(target=lambda: answers.append(server.execute("print(2)")))
            waiter.start()
            while server.ask("GET", "/health").body["queued"] == 0:
                pass
            refused = server.execute("print(3)")
            assert (refused.status, refused.code) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
            server.process.terminate()
            waiter.join(30)
            assert (answers[0].status, answers[0].code) == (503, "draining")
            assert int(answers[0].headers["retry-after"]) >= 1
            assert json.loads(response.readlines()[-1])["status"] == "cancelled"


def test_fault_of_ours_is_503_and_tells_no_detail(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "belljar.toml"
    config.write_text('[environments.default]\n[environments.broken]\npython = "/nowhere/python"\n')
    with start("--config", str(config)) as server:
        answer = server.execute("1", environment="broken")
        assert answer.status == 503
        assert answer.code == "environment_broken"
        assert answer.headers["retry-after"]
        assert "/nowhere" not in answer.content.decode()
        assert server.ask("GET", "/health").status == 200, "one broken environment is not a broken server"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"nonsense\r\n\r\n", id="not_http"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000, id="endless_header"),
        pytest.param(
            b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", id="negative_length"
        ),
    ],
)
def test_what_is_not_http_is_400(server: Server, sent: bytes) -> None:
    with server.dial() as wire:
        wire.sendall(sent)
        answer = take_answer(wire)
    assert (answer.status, answer.code) == (400, "bad_request")


def test_errors_tell_nothing_about_the_server(server: Server) -> None:
    for body in (b"{", b'{"code": 1}', b'{"code": "1", "files": [{"path": "/etc/passwd"}]}'):
        text = server.ask("POST", "/v1/execute", body).content.decode()
        assert not any(word in text for word in ("Traceback", ".py", "msgspec", "belljar/", "/usr", "/var"))


def test_keep_alive_survives_errors(server: Server) -> None:
    connection = server.connect()
    for body in (b"{", b'{"code": "print(1)"}', b'{"code": 1}', b'{"code": "print(2)"}'):
        connection.request("POST", "/v1/execute", body, JSON)
        response = connection.getresponse()
        response.read()
    assert response.status == 200
    connection.close()


def test_a_missing_language_is_reported_with_how_to_install_it(server: Server) -> None:
    unknown = server.execute("x", language="cobol")
    assert (unknown.status, unknown.code) == (422, "unknown_language")
    assert "/v1/languages" in unknown.body["error"]["message"]
    missing = server.execute("fn main() {}", language="vlang")
    assert (missing.status, missing.code) == (422, "toolchain_missing")
    assert "vlang.io" in missing.body["error"]["message"]
