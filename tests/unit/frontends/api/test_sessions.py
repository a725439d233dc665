"""Every session call over real sockets: state, turns, streams, ends, branches, files, keys, ceilings."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from api_server import JSON, Server, Start

from belljar.frontends.access.keys import Key, KeyFile
from belljar.settings import load

from .talk import Talk, value_of

WAIT_FOR = "import os, time\nwhile not os.path.exists({name!r}): time.sleep(0.01)"
LOOP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture
def talk(server: Server) -> Iterator[Talk]:
    talking = Talk(server)
    yield talking
    talking.close_all()


@pytest.fixture(scope="module")
def keyed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Talk]]:
    """A server with keys: one plain, one of another caller, one that may have two sessions, one that asks rarely."""
    file = KeyFile(tmp_path_factory.mktemp("session-keys") / "keys.json")
    keys = {
        "own": Key(name="own"),
        "other": Key(name="other"),
        "two": Key(name="two", max_sessions=2),
        "rare": Key(name="rare", requests_per_minute=2),
    }
    texts = {name: file.create(key) for name, key in keys.items()}
    with start(server__keys_file=file.path) as server:
        yield {name: Talk(server, text) for name, text in texts.items()}


def is_busy(talk: Talk, session_id: str) -> bool:
    return bool(talk.state(session_id)["state"] == "busy")


# ---- opening and looking


def test_open_answers_with_the_session(talk: Talk) -> None:
    answer = talk.ask("POST", "", {"idle_seconds": 90, "limits": {"memory_mb": 300}})
    body = answer.body
    assert answer.status == 201
    assert answer.headers["location"] == f"/v1/sessions/{body['id']}"
    assert set(body) == {
        *("id", "language", "environment", "state", "cells", "memory_bytes", "parent", "limits"),
        *("created_at", "last_used_at", "expires_at"),
    }
    assert (body["language"], body["state"], body["cells"], body["parent"]) == ("python", "idle", 0, None)
    assert body["limits"]["memory_mb"] == 300
    created, expires = (datetime.fromisoformat(body[name]) for name in ("created_at", "expires_at"))
    assert body["created_at"].endswith("Z")
    assert 89 < (expires - created).total_seconds() < 91
    assert len(body["id"]) >= 32, "it cannot be guessed"


def test_open_needs_no_body(talk: Talk) -> None:
    answer = talk.ask("POST")
    assert answer.status == 201
    assert talk.value(answer.body["id"], "6 * 7") == "42"


def test_times_are_finer_than_the_clock_of_the_loop(talk: Talk) -> None:
    opened = talk.open()
    seconds = [talk.run(opened, "1")["usage"]["wall_seconds"] for _ in range(5)]
    assert any(abs(each * 1000 - round(each * 1000)) > 1e-3 for each in seconds), seconds


def test_id_can_be_chosen_once(talk: Talk) -> None:
    assert talk.open(id="my-session.1") == "my-session.1"
    again = talk.ask("POST", "", {"id": "my-session.1"})
    assert (again.status, again.code) == (409, "session_exists")


def test_list_and_state(talk: Talk) -> None:
    first, second = talk.open(), talk.open()
    talk.run(first, "x = 1")
    listed = {each["id"]: each for each in talk.ask("GET").body["sessions"]}
    assert set(listed) == {first, second}
    assert (listed[first]["cells"], listed[second]["cells"]) == (1, 0)
    assert listed[first]["memory_bytes"] > 0
    assert talk.state(first)["cells"] == 1


def test_files_env_and_environment_are_there(talk: Talk) -> None:
    opened = talk.open(env={"LEVEL": "3"}, files=[{"path": "d/a.txt", "content": "hi"}], environment="default")
    assert talk.value(opened, "import os; os.environ['LEVEL'] + open('d/a.txt').read()") == "'3hi'"


# ---- cells


def test_state_stays_and_cells_are_counted(talk: Talk) -> None:
    opened = talk.open()
    first = talk.run(opened, "x = 41\nprint('hello')")
    assert (first["cell"], first["status"], first["stdout"], first["displays"]) == (1, "ok", "hello\n", [])
    second = talk.run(opened, "x + 1")
    assert (second["cell"], value_of(second), second["stdout"]) == (2, "42", "")


def test_failing_cell_is_200_and_keeps_the_state(talk: Talk) -> None:
    opened = talk.open()
    outcome = talk.run(opened, "x = 5\n1/0")
    assert (outcome["status"], outcome["error"]["type"]) == ("failed", "ZeroDivisionError")
    assert talk.value(opened, "x") == "5"


def test_timed_out_cell_keeps_the_state(talk: Talk) -> None:
    opened = talk.open()
    talk.run(opened, "x = 5")
    assert talk.run(opened, LOOP, timeout=0.5)["status"] == "timed_out"
    assert talk.value(opened, "x") == "5"


def test_limits_of_a_cell(talk: Talk) -> None:
    opened = talk.open(limits={"wall_seconds": 60})
    assert talk.run(opened, LOOP, limits={"wall_seconds": 0.5})["status"] == "timed_out"
    outcome = talk.run(opened, "print('x' * 5000)", limits={"output_kb": 1})
    assert outcome["truncated"] == {"stdout": True, "stderr": False}
    refused = talk.ask("POST", f"/{opened}/execute", {"code": "1", "limits": {"memory_mb": 1}})
    assert (refused.status, refused.code) == (422, "invalid_request")


def test_artifacts_of_a_cell(talk: Talk) -> None:
    opened = talk.open()
    outcome = talk.run(opened, "open('a.txt', 'w').write('1'); open('b.bin', 'w').write('2')", artifacts=["*.txt"])
    assert [each["path"] for each in outcome["artifacts"]] == ["a.txt"]


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
def test_events_arrive_while_the_cell_runs(talk: Talk, accept: str) -> None:
    opened = talk.open()
    code = f"print('first', flush=True)\n{WAIT_FOR.format(name='go')}\nprint('second')\n7"
    with talk.streaming(opened, code, accept) as response:
        assert response.headers["content-type"].startswith(accept)
        events = read_events(response)
        assert next(events)["event"] == "started"
        assert next(events) == {"event": "stdout", "text": "first\n"}
        assert talk.put(opened, "go").status == 204, "only now can the cell go on"
        rest = list(events)
    assert rest[0] == {"event": "stdout", "text": "second\n"}
    assert (rest[1]["event"], rest[1]["mime"], rest[1]["data"]) == ("display", "text/plain", "7")
    assert (rest[2]["event"], rest[2]["status"], rest[2]["cell"]) == ("finished", "ok", 1)
    assert "stdout" not in rest[2]


def read_events(response: Any) -> Iterator[dict[str, Any]]:
    for line in response:
        text = line.decode().strip().removeprefix("data: ")
        if text.startswith("{"):
            yield json.loads(text)


# ---- turns


def test_second_cell_waits(talk: Talk, host: Any) -> None:
    opened = talk.open()
    with talk.running(opened, WAIT_FOR.format(name="go") + "\nx = 1") as first:
        host.wait_until(lambda: is_busy(talk, opened), "the first cell runs")
        with talk.running(opened, "x + 1") as second:
            talk.put(opened, "go")
    assert first.wait().body["cell"] == 1
    assert value_of(second.wait().body) == "2"


def test_second_cell_is_refused_when_it_does_not_wait(talk: Talk, host: Any) -> None:
    opened = talk.open()
    with talk.running(opened, WAIT_FOR.format(name="go")):
        host.wait_until(lambda: is_busy(talk, opened), "the cell runs")
        for accept in ("application/json", "application/x-ndjson"):
            answer = talk.ask("POST", f"/{opened}/execute", {"code": "1", "wait": False}, Accept=accept)
            assert (answer.status, answer.code) == (409, "session_busy")
        busy = talk.ask("POST", f"/{opened}/branch", {})
        assert (busy.status, busy.code) == (409, "session_busy")
        talk.put(opened, "go")
    assert talk.value(opened, "1", wait=False) == "1"


def test_interrupt(talk: Talk, host: Any) -> None:
    opened = talk.open()
    talk.run(opened, "x = 5")
    with talk.running(opened, LOOP, timeout=60) as later:
        host.wait_until(lambda: is_busy(talk, opened), "the cell runs")
        host.wait_until(lambda: talk.ask("POST", f"/{opened}/interrupt").body["interrupted"] is False, "it is over")
        outcome = later.wait().body
    assert (outcome["status"], outcome["error"]["type"]) == ("failed", "KeyboardInterrupt")
    assert talk.value(opened, "x") == "5"
    assert talk.ask("POST", f"/{opened}/interrupt").body == {"interrupted": False}


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/event-stream"])
@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "reset"])
def test_hanging_up_interrupts_the_cell(talk: Talk, host: Any, accept: str, abruptly: bool) -> None:
    opened = talk.open()
    talk.run(opened, "x = 5")
    connection = talk.server.connect()
    body = json.dumps({"code": f"x = 6\n{LOOP}", "timeout": 60})
    connection.request("POST", f"/v1/sessions/{opened}/execute", body, {**JSON, "Accept": accept})
    host.wait_until(lambda: is_busy(talk, opened), "the cell runs")
    host.wait_until(lambda: talk.state(opened)["cells"] == 2, "and is counted")
    if abruptly:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    host.wait_until(lambda: not is_busy(talk, opened), "the cell is over", seconds=10)
    assert talk.value(opened, "x") in ("5", "6")
    assert talk.server.wait_for_line("cell", session=opened, status="cancelled")


def test_hanging_up_leaves_the_line(talk: Talk, host: Any) -> None:
    opened = talk.open()
    with talk.running(opened, WAIT_FOR.format(name="go")):
        host.wait_until(lambda: is_busy(talk, opened), "the first cell runs")
        connection = talk.server.connect()
        connection.request("POST", f"/v1/sessions/{opened}/execute", b'{"code": "bad = 1"}', JSON)
        connection.close()
        assert talk.server.wait_for_line("cell", session=opened, status="cancelled")
        talk.put(opened, "go")
    assert talk.value(opened, "'bad' in globals()") == "False"


# ---- ends


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        pytest.param("import os; os._exit(3)", "failed", "exit", id="exit"),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "crashed", "crash", id="crash"),
        pytest.param("x = b'x' * 10**9", "out_of_memory", "memory", id="memory"),
    ],
)
def test_dead_session_says_why(talk: Talk, code: str, status: str, reason: str) -> None:
    opened = talk.open(limits={"memory_mb": 128})
    assert talk.run(opened, code)["status"] == status
    for answer in (
        talk.ask("GET", f"/{opened}"),
        talk.ask("POST", f"/{opened}/execute", {"code": "1"}),
        talk.ask("POST", f"/{opened}/branch", {}),
        talk.ask("POST", f"/{opened}/interrupt"),
        talk.ask("GET", f"/{opened}/files"),
        talk.put(opened, "a"),
        talk.ask("DELETE", f"/{opened}"),
    ):
        assert (answer.status, answer.code) == (404, "session_ended")
        assert answer.body["error"]["details"]["reason"] == reason
    assert opened not in {each["id"] for each in talk.ask("GET").body["sessions"]}


def test_cell_that_will_not_be_interrupted_ends_the_session(talk: Talk) -> None:
    opened = talk.open()
    code = "import time\nwhile True:\n  try:\n    while True: time.sleep(0.01)\n  except BaseException: pass"
    assert talk.run(opened, code, timeout=3)["status"] == "timed_out"  # once it is where it cannot be interrupted
    answer = talk.ask("GET", f"/{opened}")
    assert (answer.status, answer.body["error"]["details"]["reason"]) == (404, "timeout")


def test_closed_session_says_so(talk: Talk) -> None:
    opened = talk.open()
    answer = talk.ask("DELETE", f"/{opened}")
    assert (answer.status, answer.content) == (204, b"")
    again = talk.ask("DELETE", f"/{opened}")
    assert (again.status, again.code, again.body["error"]["details"]["reason"]) == (404, "session_ended", "closed")


def test_closing_ends_the_running_cell(talk: Talk, host: Any) -> None:
    opened = talk.open()
    with talk.running(opened, LOOP, timeout=60) as later:
        host.wait_until(lambda: is_busy(talk, opened), "the cell runs")
        assert talk.ask("DELETE", f"/{opened}").status == 204
        answer = later.wait()
    assert answer.status in (200, 404), answer.body
    if answer.status == 200:
        assert answer.body["status"] in ("crashed", "cancelled", "failed")


def test_unused_session_expires(talk: Talk, host: Any) -> None:
    opened = talk.open(idle_seconds=0.3)
    host.wait_until(lambda: talk.ask("GET").body["sessions"] == [], "it is closed")
    answer = talk.ask("POST", f"/{opened}/execute", {"code": "1"})
    assert (answer.status, answer.code, answer.body["error"]["details"]["reason"]) == (404, "session_ended", "expired")


def test_busy_session_does_not_expire(talk: Talk) -> None:
    opened = talk.open(idle_seconds=0.3)
    assert talk.value(opened, "import time; time.sleep(1); 5") == "5"
    assert talk.value(opened, "6") == "6"


# ---- branches


def test_branches_diverge(talk: Talk) -> None:
    parent = talk.open(files=[{"path": "a.txt", "content": "old"}])
    talk.run(parent, "x = [1]")
    children = talk.branch(parent, count=3)
    assert [each["parent"] for each in children] == [parent] * 3
    assert len({each["id"] for each in children} | {parent}) == 4
    for number, each in enumerate(children):
        assert (
            talk.value(each["id"], f"x.append({number}); open('a.txt', 'w').write('{number}'); x") == f"[1, {number}]"
        )
    assert talk.value(parent, "x, open('a.txt').read()") == "([1], 'old')"
    (grandchild,) = talk.branch(children[2]["id"])
    assert grandchild["parent"] == children[2]["id"]
    assert talk.value(grandchild["id"], "x, open('a.txt').read()") == "([1, 2], '2')"
    talk.ask("DELETE", f"/{parent}")
    assert talk.value(grandchild["id"], "x") == "[1, 2]", "it needs its ancestors no more"


def test_random_generators_differ_unless_asked_otherwise(talk: Talk) -> None:
    parent = talk.open()
    talk.run(parent, "import random; random.seed(1)")
    for reseed, distinct in ((True, 3), (False, 1)):
        drawn = [talk.value(each["id"], "random.random()") for each in talk.branch(parent, count=3, reseed=reseed)]
        assert len(set(drawn)) == distinct


def test_branch_needs_no_body(talk: Talk) -> None:
    opened = talk.open()
    assert len(talk.ask("POST", f"/{opened}/branch").body["sessions"]) == 1


def test_state_with_threads_cannot_be_branched(talk: Talk) -> None:
    opened = talk.open()
    talk.run(opened, "import threading; stop = threading.Event(); threading.Thread(target=stop.wait).start()")
    answer = talk.ask("POST", f"/{opened}/branch", {})
    assert (answer.status, answer.code) == (409, "cannot_branch")
    assert "thread" in answer.body["error"]["message"]
    talk.run(opened, "stop.set()")


# ---- files


def test_files_go_in_and_out(talk: Talk) -> None:
    opened = talk.open()
    content = bytes(range(256)) * 100
    assert talk.put(opened, "data/deep/a%20b.bin", content).status == 204
    assert talk.value(opened, "len(open('data/deep/a b.bin', 'rb').read())") == str(len(content))
    talk.run(opened, "open('é/ü.txt', 'w').write('made') if __import__('os').mkdir('é') is None else 0")
    answer = talk.ask("GET", f"/{opened}/files/%C3%A9/%C3%BC.txt")
    assert (answer.status, answer.content) == (200, b"made")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert talk.ask("GET", f"/{opened}/files/data/deep/a%20b.bin").content == content
    listed = talk.ask("GET", f"/{opened}/files").body["files"]
    assert [(each["path"], each["bytes"]) for each in listed] == [("data/deep/a b.bin", len(content)), ("é/ü.txt", 4)]
    assert all(each["modified_at"].endswith("Z") for each in listed)
    assert talk.put(opened, "data/deep/a%20b.bin", b"new").status == 204
    assert talk.ask("GET", f"/{opened}/files/data/deep/a%20b.bin").content == b"new"
    assert talk.ask("DELETE", f"/{opened}/files/data/deep/a%20b.bin").status == 204
    gone = talk.ask("GET", f"/{opened}/files/data/deep/a%20b.bin")
    assert (gone.status, gone.code) == (404, "file_not_found")


@pytest.mark.parametrize("path", ["a%0Ab", "a%0A", "%0A/b"])
def test_file_names_may_have_line_breaks(talk: Talk, path: str) -> None:
    opened = talk.open()
    assert talk.put(opened, path, b"x").status == 204
    assert talk.ask("GET", f"/{opened}/files/{path}").content == b"x"
    assert [each["path"] for each in talk.ask("GET", f"/{opened}/files").body["files"]] == [unquote(path)]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("../etc/passwd", id="climbs"),
        pytest.param("%2e%2e/etc/passwd", id="climbs_encoded"),
        pytest.param("..%2fetc%2fpasswd", id="climbs_with_an_encoded_slash"),
        pytest.param("a/../../b", id="climbs_later"),
        pytest.param("/etc/passwd", id="absolute"),
        pytest.param("%2fetc%2fpasswd", id="absolute_encoded"),
        pytest.param("a%00b", id="nul"),
        pytest.param("a%5cb", id="backslash"),
        pytest.param("a%ffb", id="not_utf8"),
        pytest.param("%ed%a0%80", id="surrogate"),
        pytest.param("a/", id="directory"),
        pytest.param("x" * 300, id="long_name"),
        pytest.param("/".join("x" * 40), id="deep"),
    ],
)
def test_unsafe_path_is_refused(talk: Talk, path: str) -> None:
    opened = talk.open()
    for answer in (
        talk.put(opened, path, b"x"),
        talk.ask("GET", f"/{opened}/files/{path}"),
        talk.ask("DELETE", f"/{opened}/files/{path}"),
    ):
        assert (answer.status, answer.code) == (422, "unsafe_path"), answer.body


def test_planted_links_are_not_followed(talk: Talk) -> None:
    opened = talk.open()
    talk.run(opened, "import os; os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'dir'); os.mkfifo('pipe')")
    for path in ("link", "dir/passwd", "pipe"):
        answer = talk.ask("GET", f"/{opened}/files/{path}")
        assert answer.status in (404, 422), path
        assert answer.code in ("file_not_found", "unsafe_path")
    assert talk.put(opened, "dir/x", b"x").status in (404, 422)
    assert talk.put(opened, "pipe/x", b"x").status in (404, 422)
    if talk.put(opened, "link", b"mine").status == 204:  # the link itself was replaced
        assert talk.ask("GET", f"/{opened}/files/link").content == b"mine"
    listed = [each["path"] for each in talk.ask("GET", f"/{opened}/files").body["files"]]
    assert listed in ([], ["link"])


def test_files_are_capped(talk: Talk) -> None:
    opened = talk.open(limits={"disk_mb": 1})
    over_the_body = talk.put(opened, "a", b"x" * 2_100_000)
    assert (over_the_body.status, over_the_body.code) == (413, "too_large")
    over_the_disk = talk.put(opened, "a", b"x" * 1_500_000)
    assert (over_the_disk.status, over_the_disk.code) == (413, "too_large")
    assert talk.put(opened, "a", b"x" * 500_000).status == 204
    assert talk.value(opened, "1") == "1"


# ---- errors


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        pytest.param("", b"{", 400, "not_json", id="open_not_json"),
        pytest.param("", {"idle": 5}, 422, "invalid_request", id="open_unknown_field"),
        pytest.param("", {"id": "a/b"}, 422, "invalid_execution", id="open_bad_id"),
        pytest.param("", {"idle_seconds": -1}, 422, "invalid_request", id="open_negative_idle"),
        pytest.param("", {"idle_seconds": 1e12}, 422, "invalid_execution", id="open_idle_for_ever"),
        pytest.param("", {"language": "klingon"}, 422, None, id="open_unknown_language"),
        pytest.param("", {"environment": "nope"}, 422, "unknown_environment", id="open_unknown_environment"),
        pytest.param("", {"limits": {"memory_mb": 10**9}}, 422, "limit_above_ceiling", id="open_above_the_ceiling"),
        pytest.param("", {"files": [{"path": "../x"}]}, 422, "unsafe_path", id="open_unsafe_file"),
        pytest.param("", {"network": True}, 422, "not_offered", id="open_network"),
        pytest.param("", {"tools": True}, 422, "not_offered", id="open_tools"),
        pytest.param("/nope/execute", {"code": "1"}, 404, "session_not_found", id="unknown_session"),
        pytest.param("/{id}/execute", {"code": " "}, 422, "invalid_execution", id="blank_cell"),
        pytest.param("/{id}/execute", {"code": "1", "stdin": "x"}, 422, "invalid_request", id="cell_unknown_field"),
        pytest.param("/{id}/execute", {"code": "1", "timeout": 1e6}, 422, "limit_above_ceiling", id="cell_too_long"),
        pytest.param("/{id}/execute", b"", 400, "not_json", id="cell_without_body"),
        pytest.param("/{id}/branch", {"count": 0}, 422, "invalid_request", id="no_branches"),
        pytest.param("/{id}/branch", {"count": 1000}, 422, "invalid_request", id="too_many_branches"),
        pytest.param("/{id}/nope", {}, 404, "not_found", id="unknown_route"),
        pytest.param("/{id}/files", {}, 405, "method_not_allowed", id="wrong_method"),
    ],
)
def test_bad_request_is_refused(talk: Talk, path: str, body: Any, status: int, code: str | None) -> None:
    answer = talk.ask("POST", path.format(id=talk.open()), body)
    assert answer.status == status, answer.body
    assert answer.code == code or code is None


def test_body_must_be_declared_as_json(talk: Talk) -> None:
    answer = talk.ask("POST", "", b"{}", **{"Content-Type": "text/plain"})
    assert (answer.status, answer.code) == (400, "not_json")


# ---- keys and ceilings


def test_session_belongs_to_its_key(keyed: dict[str, Talk]) -> None:
    own, other = keyed["own"], keyed["other"]
    opened = own.open(id="shared-name")
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/execute", {"code": "1"}),
        ("POST", "/branch", {}),
        ("POST", "/interrupt", None),
        ("GET", "/files", None),
        ("PUT", "/files/a", b"x"),
        ("GET", "/files/a", None),
        ("DELETE", "/files/a", None),
    ):
        answer = other.ask(method, f"/{opened}{path}", body)
        assert (answer.status, answer.code) == (404, "session_not_found"), (method, path)
        assert Talk(own.server).ask(method, f"/{opened}{path}", body).status == 401
    assert other.ask("GET").body == {"sessions": []}
    assert own.value(opened, "1") == "1"
    theirs = other.open(id="shared-name")
    other.run(theirs, "x = 'theirs'")
    assert own.value(opened, "'x' in globals()") == "False", "each has its own of that name"
    own.close_all()
    other.close_all()


def test_key_has_a_ceiling(keyed: dict[str, Talk]) -> None:
    two = keyed["two"]
    first = two.open()
    for body, path in (({}, ""), ({"count": 2}, f"/{first}/branch")):
        if not path:
            two.open()
        answer = two.ask("POST", path, body)
        assert (answer.status, answer.code) == (429, "too_many_sessions")
        assert int(answer.headers["retry-after"]) >= 1
        assert "2 sessions" in answer.body["error"]["message"]
    assert keyed["own"].ask("POST").status == 201, "others are not concerned"
    two.close_all()
    assert two.open()
    two.close_all()
    keyed["own"].close_all()


def test_session_calls_count_as_requests(keyed: dict[str, Talk]) -> None:
    rare = keyed["rare"]
    opened = rare.open()
    rare.run(opened, "1")
    answer = rare.ask("POST", f"/{opened}/execute", {"code": "1"})
    assert (answer.status, answer.code) == (429, "quota_exceeded")
    assert rare.ask("POST", f"/{opened}/interrupt").status == 200, "what runs can always be stopped"
    assert rare.ask("DELETE", f"/{opened}").status == 204


def test_ceiling_is_set_on_the_command_line(command: list[str], environ: dict[str, str], tmp_path: Path) -> None:
    variables = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(tmp_path / "keys.json")}
    subprocess.run([*command, "key", "create", "a", "--max-sessions", "3"], env=variables, check=True)
    (key,) = KeyFile(tmp_path / "keys.json").read()
    assert key.max_sessions == 3
    refused = subprocess.run([*command, "key", "create", "b", "--max-sessions", "0"], env=variables, check=False)
    assert refused.returncode == 2


def test_familiar_names_set_the_ceiling_and_the_expiry() -> None:
    settings = load(environ={"MAX_KERNELS": "7", "KERNEL_TIMEOUT": "5"}, takes_familiar_names=True)
    assert (settings.sessions.max_sessions, settings.sessions.idle_seconds) == (7, 5.0)


def test_server_has_a_ceiling(start: Start) -> None:
    with start("--set", "sessions.max_sessions=2") as server:
        talk = Talk(server)
        first = talk.open()
        talk.open()
        answer = talk.ask("POST")
        assert (answer.status, answer.code) == (429, "too_many_sessions")
        assert int(answer.headers["retry-after"]) >= 1
        assert talk.value(first, "1") == "1", "no session was ended for it"
        talk.ask("DELETE", f"/{first}")
        talk.open()


# ---- what operators see


def test_metrics_and_log(talk: Talk) -> None:
    def count(name: str) -> float:
        text = talk.server.ask("GET", "/metrics").content.decode()
        found = re.search(rf"^{re.escape(name)} ([\d.e+]+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    names = (
        *("belljar_sessions", "belljar_sessions_opened_total", "belljar_sessions_branched_total"),
        *('belljar_sessions_ended_total{reason="closed"}', 'belljar_cells_total{language="python",status="ok"}'),
    )
    before = [count(name) for name in names]
    opened = talk.open()
    (branch,) = talk.branch(opened)
    cell = talk.run(opened, "secret_word = 1")
    after = [count(name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 1, 0, 1]
    assert talk.server.wait_for_line("session_opened", id=opened)["parent"] is None
    assert talk.server.wait_for_line("session_opened", id=branch["id"])["parent"] == opened
    line = talk.server.wait_for_line("cell", id=cell["id"])
    assert (line["session"], line["cell"], line["status"]) == (opened, 1, "ok")
    assert "secret" not in str(line)
    talk.ask("DELETE", f"/{opened}")
    line = talk.server.wait_for_line("session_ended", id=opened)
    assert (line["reason"], line["cells"]) == ("closed", 1)
    assert count(names[3]) == before[3] + 1


def test_server_stops_with_sessions_open(start: Start) -> None:
    with start(server__grace_seconds=1) as server:
        talk = Talk(server)
        busy = talk.open()
        talk.open()
        talk.branch(talk.open(), count=2)
        with server.streaming(LOOP, path=f"/v1/sessions/{busy}/execute", timeout=60) as response:
            assert json.loads(response.readline())["event"] == "started"
            assert server.stop() == 0
