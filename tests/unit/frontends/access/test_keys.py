"""Keys: who gets in, what each may use, and that changes count at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Server, Start

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyed") / "keys.json"


@pytest.fixture(scope="module")
def run_key(command: list[str], environ: dict[str, str], keys_file: Path) -> Run:
    """`belljar key …`"""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(keys_file)}
        return subprocess.run([*command, "key", *arguments], env=variables, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def keyed(start: Start, run_key: Run, keys_file: Path) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server with keys, and the keys by name."""
    ceilings = {
        "plain": [],
        "narrow": ["--max-concurrent", "1"],
        "rare": ["--requests-per-minute", "2"],
        "small": ["--limit", "wall_seconds=2", "--limit", "memory_mb=64"],
        "wide": ["--network", "--tools"],
    }
    texts = {name: run_key("create", name, *options).stdout.strip() for name, options in ceilings.items()}
    assert all(text.startswith("bj_") for text in texts.values())
    with start(server__keys_file=keys_file, server__api_key="operators-own") as server:
        yield server, texts


def test_every_route_but_the_public_ones_needs_a_key(keyed: tuple[Server, dict[str, str]]) -> None:
    server, _ = keyed
    for method, path in (
        *(("GET", f"/v1/{name}") for name in ("languages", "environments", "info")),
        *(("POST", f"/v1/{name}") for name in ("execute", "batch")),
        *(("GET", "/metrics"), ("GET", "/v1/execute")),
    ):
        answer = server.ask(method, path, {"code": "1"} if method == "POST" else None)
        assert (answer.status, answer.code) == (401, "unauthorized"), path
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/", "/health", "/docs", "/openapi.json"):
        assert server.ask("GET", path).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer bj_000000000000_x"},
        {"Authorization": "Basic {plain}"},
        {"Authorization": "{plain}"},
        {"Authorization": "Bearer "},
        {"X-API-Key": ""},
        {"X-API-Key": "ä"},
        {"Cookie": "key={plain}"},
    ],
)
def test_wrong_key_is_401(keyed: tuple[Server, dict[str, str]], headers: dict[str, str]) -> None:
    server, texts = keyed
    sent = {name: value.format(**texts) for name, value in headers.items()}
    assert server.ask("POST", "/v1/execute", {"code": "1"}, sent).status == 401


def test_key_in_the_query_is_not_taken(keyed: tuple[Server, dict[str, str]]) -> None:
    server, texts = keyed
    assert server.ask("GET", f"/v1/info?key={texts['plain']}&api_key={texts['plain']}").status == 401


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/x", "/mcp/%0A", "/mcp/x%0Ay", "/ai/sandbox/v1/mcp/%0A"])
def test_nothing_below_mcp_is_reached_without_a_key(keyed: tuple[Server, dict[str, str]], path: str) -> None:
    server, _ = keyed
    assert server.ask("POST", path, {}).status == 401


def test_both_headers_work_and_the_name_is_logged(keyed: tuple[Server, dict[str, str]]) -> None:
    server, texts = keyed
    assert server.execute("print(1)", key=texts["plain"]).status == 200
    assert server.wait_for_line("execution")["caller"] == "plain"
    assert server.ask("POST", "/v1/execute", {"code": "1"}, {"X-API-Key": "operators-own"}).status == 200
    assert server.wait_for_line("execution")["caller"] == "operator"


def test_concurrency_of_one_key_is_bounded(keyed: tuple[Server, dict[str, str]]) -> None:
    server, texts = keyed
    headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson", "X-API-Key": texts["narrow"]}
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/v1/execute", b'{"code": "import time; time.sleep(30)", "timeout": 30}', headers)
        connection.getresponse().readline()
        refused = server.execute("print(1)", key=texts["narrow"])
        assert (refused.status, refused.code) == (429, "quota_exceeded")
        assert refused.headers["retry-after"]
        assert server.execute("print(1)", key=texts["plain"]).status == 200
    server.wait_for_line("execution", caller="narrow", status="cancelled")
    batch = server.ask("POST", "/v1/batch", {"executions": [{"code": "print(1)"}] * 5}, key=texts["narrow"])
    assert (batch.status, batch.body["passed"]) == (200, 5)


def test_requests_per_minute_of_one_key_are_bounded(keyed: tuple[Server, dict[str, str]]) -> None:
    server, texts = keyed
    statuses = [server.execute("1", key=texts["rare"]).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = server.execute("1", key=texts["rare"])
    assert refused.code == "quota_exceeded"
    assert 20 <= int(refused.headers["retry-after"]) <= 60


def test_limits_of_one_key_are_lower(keyed: tuple[Server, dict[str, str]]) -> None:
    server, texts = keyed
    refused = server.execute("1", key=texts["small"], timeout=3)
    assert (refused.status, refused.code) == (422, "limit_above_ceiling")
    limits = server.ask("GET", "/v1/info", key=texts["small"]).body["limits"]
    assert limits["ceiling"]["memory_mb"] == limits["default"]["memory_mb"] == 64
    assert server.execute("1", key=texts["plain"], timeout=3).status == 200


@pytest.mark.parametrize("field", ["network", "tools"])
def test_what_a_key_may_not_use_is_403(keyed: tuple[Server, dict[str, str]], field: str) -> None:
    server, texts = keyed
    refused = server.execute("1", key=texts["plain"], **{field: True})
    assert (refused.status, refused.code) == (403, "not_allowed")
    assert server.execute("1", key=texts["wide"], **{field: True}).status == 422


def test_changes_count_at_once(keyed: tuple[Server, dict[str, str]], run_key: Run) -> None:
    server, _ = keyed
    text = run_key("create", "brief").stdout.strip()
    assert server.execute("1", key=text).status == 200
    assert run_key("revoke", "brief").returncode == 0
    assert server.execute("1", key=text).status == 401


def test_nothing_secret_is_at_rest_or_listed(
    keyed: tuple[Server, dict[str, str]], run_key: Run, keys_file: Path
) -> None:
    _, texts = keyed
    stored = keys_file.read_text()
    listed = run_key("list", "--json").stdout
    assert {key["name"] for key in json.loads(listed)} >= set(texts)
    for text in texts.values():
        assert text.split("_", 2)[2] not in stored + listed
    assert keys_file.stat().st_mode & 0o077 == 0
    assert "plain" in run_key("list").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "plain"),
        ("create", "bad name"),
        ("create", "operator"),
        ("create", "x", "--limit", "wall=1"),
        ("revoke", "nobody"),
    ],
)
def test_what_makes_no_sense_is_refused(keyed: object, run_key: Run, arguments: tuple[str, ...]) -> None:
    ended = run_key(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith("belljar: ")


def test_last_key_revoked_does_not_open_the_door(
    start: Start, command: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    variables: Any = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(file)}
    with start(server__keys_file=file) as server:
        assert server.execute("1").status == 200, "loopback without any key is open"
        subprocess.run([*command, "key", "create", "first"], env=variables, capture_output=True, check=True)
        assert server.execute("1").status == 401
        subprocess.run([*command, "key", "revoke", "first"], env=variables, capture_output=True, check=True)
        assert server.execute("1").status == 401
