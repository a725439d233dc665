"""What the worst requests may cost: how long one holds the server or a runner, and how much memory all of them take.

A stall is counted in processor time (see `watched_server`), and related to what this machine needs for a fixed piece of
work, so that a slow or busy machine does not change the verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_server import JSON, Server

MIB = 1024 * 1024
STALL_SECONDS = 0.05
_WORK_SECONDS = 0.010  # what `_calibrate` takes on the machine that the bound was chosen on
_SUPPORT = Path(__file__).parents[3] / "support"
_DEADLINE_SECONDS = 120.0
_ATTEMPTS = 3

Ask = Callable[[Server], None]


class Watched(Server):
    """A server that notes its stalls."""

    notes: Path

    def stalls(self) -> dict[str, float]:
        """The longest of the server and of its runners since `forget`."""
        found: dict[str, float] = {}
        for each in self.notes.iterdir():
            name = each.name.partition("-")[0]
            found[name] = max(found.get(name, 0.0), float(each.read_text() or 0))
        return found

    def forget(self) -> None:
        """Count from now on; returns when all of them do."""
        for each in self.notes.iterdir():
            each.write_text("")
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(each.stat().st_size == 0 for each in self.notes.iterdir()):
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)


@contextlib.contextmanager
def _serving(environ: dict[str, str], notes: Path, enter: Callable[[], None] | None = None) -> Iterator[Watched]:
    process = subprocess.Popen(
        [sys.executable, str(_SUPPORT / "watched_server.py"), str(notes), "serve"],
        env={**environ, "BELLJAR_SERVER_RUNNERS": "1"},
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=enter,
    )
    try:
        running = Watched(process)
        running.notes = notes
        yield running
        assert running.stop() == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def watched(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with _serving(environ, tmp_path_factory.mktemp("notes")) as running:
        assert running.execute("print(1)").status == 200
        _listing_session(running)
        yield running


def _calibrate() -> float:
    """How much slower than usual this machine is, at present."""
    text = json.dumps([{"name": "x" * 20, "value": "y" * 20}] * 20_000).encode()
    took = []
    for _ in range(5):
        began = time.thread_time()
        msgspec.json.decode(text)
        took.append(time.thread_time() - began)
    return max(1.0, min(took) / _WORK_SECONDS)


def _post(path: str, body: bytes, *expected: int, **headers: str) -> Ask:
    def ask(server: Server) -> None:
        answer = server.ask("POST", path, body, {**JSON, **headers})
        assert answer.status in expected, answer.content[:300]

    return ask


def _execute(*expected: int, **asked: Any) -> Ask:
    return _post("/v1/execute", json.dumps({"code": "pass", **asked}).encode(), *expected)


def _raw(field: bytes, *expected: int, path: str = "/v1/execute") -> Ask:
    return _post(path, b'{"code":"pass",' + field + b"}", *expected)


def _together(count: int, ask: Ask) -> Ask:
    def all_of_them(server: Server) -> None:
        workers = [threading.Thread(target=ask, args=(server,)) for _ in range(count)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()

    return all_of_them


def _listing_session(server: Server) -> None:
    code = "import os\nfor d in range(45):\n  os.mkdir(f'{d}')\n  for f in range(1000): open(f'{d}/{f}', 'w').close()"
    assert server.ask("POST", "/v1/sessions", {"id": "full", "limits": {"disk_mb": 1024}}).status == 201
    asked = {"code": code, "limits": {"wall_seconds": 120, "cpu_seconds": 120}}
    outcome = server.ask("POST", "/v1/sessions/full/execute", asked).body
    assert outcome["status"] == "ok", outcome


def _list(server: Server) -> None:
    assert len(server.ask("GET", "/v1/sessions/full/files").body["files"]) == 45_000


def _put_and_get(server: Server) -> None:
    path = "/v1/sessions/full/files/large"
    assert server.ask("PUT", path, b"x" * (48 * MIB), {"Content-Type": "application/octet-stream"}).status == 204
    assert len(server.ask("GET", path).content) == 48 * MIB
    assert server.ask("DELETE", path).status == 204


def _compare(how: str) -> Ask:
    """A large output against the same with other blanks, which must be looked through to its end."""
    asked = {
        "code": "print('a \\n' * (5 << 20))",
        "cases": [{"expected_stdout": "a\n" * (5 * MIB)}],
        "compare": how,
        "limits": LARGE_OUTPUT,
    }

    def ask(server: Server) -> None:
        body = server.ask("POST", "/v1/batch", asked).body
        assert body.get("passed") == 1, str(body)[:300]

    return ask


def _lines(*parts: bytes, count: int) -> bytes:
    return b",".join(parts * (count // len(parts)))


MODULES = [{"path": f"m{number}.py", "content": "\n" * (MIB - 1) + "x"} for number in range(44)]
WRITES = "open('a', 'wb').write(b'x' * (60 << 20))"
LARGE_OUTPUT = {"output_kb": 16384}

WORST: dict[str, Callable[[], Ask]] = {
    "hello": lambda: _execute(200),
    "args": lambda: _raw(b'"args":[' + _lines(b'"a"', count=24_000_000) + b"]", 413),
    "args_within_a_megabyte": lambda: _raw(b'"args":[' + _lines(b'"a"', count=250_000) + b"]", 413),
    "env": lambda: _raw(b'"env":{' + b",".join(b'"%x":""' % at for at in range(5_000_000)) + b"}", 413),
    "cases": lambda: _raw(b'"cases":[' + _lines(b"{}", count=30_000_000) + b"]", 413, path="/v1/batch"),
    "cases_within_a_megabyte": lambda: _raw(b'"cases":[' + _lines(b"{}", count=300_000) + b"]", 413, path="/v1/batch"),
    "blanks": lambda: _raw(b" " * (95 * MIB) + b'"stdin":""', 413),
    "brackets": lambda: _post("/v1/execute", b"[" * (95 * MIB), 400, 413),
    "escapes": lambda: _raw(b'"stdin":"' + b"\\n" * (45 * MIB) + b'"', 200),
    "quotes": lambda: _raw(b'"stdin":"' + b'\\"' * (20 * MIB) + b'"', 200),
    "backslashes": lambda: _raw(b'"stdin":"' + b"\\\\" * (20 * MIB) + b'"', 200),
    "not_text": lambda: _raw(b'"stdin":"' + b"\xff" * (60 * MIB) + b'"', 400),
    "stdin": lambda: _raw(b'"stdin":"' + b"a" * (60 * MIB) + b'"', 200),
    "base64": lambda: _raw(
        b'"files":[{"path":"a","encoding":"base64","content":"' + b"QUJD" * (15 * MIB) + b'"}]', 200
    ),
    "modules": lambda: _execute(200, files=MODULES),
    "code": lambda: _execute(200, code="\n" * (4 * MIB - 10) + "pass"),
    "artifacts": lambda: _execute(200, code=WRITES, artifacts=["*"]),
    "control_characters": lambda: _execute(200, code="print('\\x01' * (15 << 20))", limits=LARGE_OUTPUT),
    "no_characters": lambda: _execute(
        200, code="import os; os.write(1, b'\\xff' * 60000)\nfor _ in range(260): os.write(1, b'\\xff' * 60000)",
        limits=LARGE_OUTPUT,
    ),
    "tokens": lambda: _compare("tokens"),
    "trimmed": lambda: _compare("trimmed"),
    "batch": lambda: _post("/v1/batch", json.dumps({"executions": [{"code": ""}] * 9000}).encode(), 422),
    "cell": lambda: _post("/v1/sessions/full/execute", json.dumps({"code": "x" * (90 * MIB)}).encode(), 413),
    "listings": lambda: _together(4, _list),
    "session_file": lambda: _put_and_get,
    "kernels": lambda: _raw(
        b'"variables":{"a":[' + _lines(b"[]", count=30_000_000) + b"]}", 413, path="/api/v1/execute"
    ),
    "mcp": lambda: _raw(b'"a":[' + _lines(b"[]", count=30_000_000) + b"]", 413, path="/mcp"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORST)
def test_no_request_stalls_the_server_or_a_runner(watched: Watched, name: str) -> None:
    """Where a stall seems too long, it is measured again: other load passes, a real stall comes back."""
    ask = WORST[name]()
    worst: list[float] = []
    seen: list[str] = []
    while len(worst) < _ATTEMPTS and (not worst or min(worst) >= STALL_SECONDS):
        slow = _calibrate()
        watched.forget()
        ask(watched)
        stalls = watched.stalls()
        slow = max(slow, _calibrate())
        worst.append(max(stalls["server"], stalls["runner"]) / slow)
        seen.append(f"{stalls}, machine {slow:.1f} x slower")
    assert min(worst) < STALL_SECONDS, f"the server or a runner stood still: {seen}"


# ---- memory


@contextlib.contextmanager
def _memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with that much memory."""
    name = f"belljar-test-{os.getpid()}"
    root = Path("/sys/fs/cgroup/memory")
    group, file = (root / name, "memory.limit_in_bytes") if root.is_dir() else (root.parent / name, "memory.max")
    group.mkdir()
    try:
        (group / file).write_text(str(limit_bytes))
        yield group
    finally:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                assert time.monotonic() < deadline, (group / "cgroup.procs").read_text()
                time.sleep(0.05)


HUGE = {
    "code": "open('a', 'wb').write(b'x' * (60 << 20))\nprint('y' * (15 << 20))",
    "artifacts": ["*"],
    "limits": {"output_kb": 16384},
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a memory control group")
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_huge_batch_does_not_exhaust_a_small_machine(environ: dict[str, str], tmp_path: Path, accept: str) -> None:
    with _memory_group(700 * MIB) as group:

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        with _serving(environ, tmp_path, enter) as server:
            assert server.ask("POST", "/v1/sessions", {"id": "kept"}).status == 201
            answer = server.ask("POST", "/v1/batch", {"executions": [HUGE] * 10}, {"Accept": accept})
            assert answer.status == 200, answer.content[:300]
            if accept == "application/json":
                _check_results(answer.body["results"])
            else:
                lines = answer.content.splitlines()
                assert sum(b'"event":"result"' in line[:40] and b'"status":"ok"' in line[:400] for line in lines) == 10
            assert server.process.poll() is None
            assert server.ask("GET", "/v1/sessions/kept").status == 200, "a session was lost"


def _check_results(results: list[dict[str, Any]]) -> None:
    """Those that were kept are whole; of the others it is said why, and it is not the program's fault."""
    assert len(results) == 10
    for each in results:
        if each.get("error"):
            assert each["error"]["code"] == "too_large"
            assert each["verdict"] in ("not_kept", "not_run")
            assert "server.batch_bytes" in each["error"]["message"]
        else:
            assert each["status"] == "ok"
            assert each["artifacts"][0]["bytes"] == 60 * MIB


def test_a_batch_whose_results_are_over_the_bound_says_so(start: Any) -> None:
    with start(server__batch_bytes=4 * MIB) as server:
        asked = {
            "executions": [{"code": "print('x' * 1000000)"}] * 12,
        }
        body = server.ask("POST", "/v1/batch", asked).body
        whole = [each for each in body["results"] if "status" in each]
        others = [each["error"] for each in body["results"] if "status" not in each]
        assert len(whole) >= 3
        assert all(each["stdout"] == "x" * 1_000_000 + "\n" for each in whole)
        assert others
        assert {each["code"] for each in others} == {"too_large"}
        assert (body["passed"], body["failed"]) == (body["passed"], 0)
        streamed = server.ask("POST", "/v1/batch", asked, {"Accept": "application/x-ndjson"})
        assert streamed.content.count(b'"status":"ok"') == 12


def test_many_small_results_are_kept(start: Any) -> None:
    with start(server__bodies_bytes=128 * MIB) as server:
        body = server.ask("POST", "/v1/batch", {"code": "print(1)", "cases": [{}] * 500}).body
        assert body["passed"] == 500
        assert {each["stdout"] for each in body["results"]} == {"1\n"}
