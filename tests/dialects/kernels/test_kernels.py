"""The calls of the kernel server as its clients use them, and the mistakes of the original."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from belljar.frontends.access.keys import Key, KeyFile

PREFIX = "/ai/sandbox/v1/api"
PREFIXES = ["/api/v1", PREFIX]
DEADLINE_SECONDS = 30.0

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


@pytest.fixture
def name() -> str:
    """A session that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


def is_png(line: dict[str, Any]) -> bool:
    """Whether a line holds a picture."""
    return set(line) == {"image", "format"} and base64.b64decode(line["image"]).startswith(b"\x89PNG")


# ---- cells


@pytest.mark.parametrize("prefix", PREFIXES)
def test_printed_text_and_value_are_lines(kernels: Any, name: str, prefix: str) -> None:
    answer = kernels.ask("POST", f"{prefix}/execute", {"code": "print('hi')\n1+1", "session_id": name})
    assert answer.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
    assert answer.lines == [{"text": "hi\n"}, {"text": "2"}]


def test_both_prefixes_answer_on_the_main_port(kernels: Any, name: str) -> None:
    for prefix in PREFIXES:
        answer = kernels.ask("POST", f"{prefix}/execute", {"code": "1"}, api="native")
        assert answer.lines == [{"text": "1"}]


def test_state_persists_in_a_session_and_is_separate_from_others(kernels: Any, name: str) -> None:
    assert kernels.run("x = 41", name) == []
    assert kernels.run("x + 1", name) == [{"text": "42"}]
    (line,) = kernels.run("x")
    assert line["error"] == "NameError: name 'x' is not defined"


@pytest.mark.parametrize("odd", ["a\nb", "a\r\nx-evil: 1", "\0", "tab\t\x7f", "é \U0001f600 \\"])
@pytest.mark.parametrize("path", ["execute", "execute_sync"])
def test_any_session_name_is_accepted(kernels: Any, name: str, odd: str, path: str) -> None:
    asked = {"code": "1+1", "session_id": name[:20] + odd}
    answer = kernels.ask("POST", f"{PREFIX}/{path}", asked)
    assert answer.status == 200
    assert '"2"' in answer.text
    assert answer.headers["x-session-id"].encode().decode("unicode_escape") == asked["session_id"]
    assert "x-evil" not in answer.headers


def test_exception_is_a_line(kernels: Any, name: str) -> None:
    *text, line = kernels.run("print('a')\nnope", name)
    assert text == [{"text": "a\n"}]
    assert set(line) == {"error", "traceback"}
    assert line["error"] == "NameError: name 'nope' is not defined"
    assert any("nope" in each for each in line["traceback"])


def test_error_output_is_text(kernels: Any, name: str) -> None:
    assert kernels.run("import sys\nprint('x', file=sys.stderr)", name) == [{"text": "x\n"}]
    dashes = kernels.run("import sys\nprint('-' * 75, file=sys.stderr)\nprint('y', file=sys.stderr)", name)
    assert "".join(line["text"] for line in dashes) == "-" * 75 + "\ny\n"


def test_syntax_error_is_one_line(kernels: Any, name: str) -> None:
    (line,) = kernels.run("def f(:", name)
    assert line["error"].startswith("SyntaxError: ")


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        pytest.param(PLOT, ["png"], id="plot"),
        pytest.param(PLOT.replace("plt.show()", "None"), ["png"], id="figure_left_open"),
        pytest.param(f"{PLOT}\nprint(1)", ["png", "text"], id="plot_then_text"),
        pytest.param(
            "from PIL import Image\nfrom IPython.display import display\n"
            "import os\ndisplay(Image.frombytes('RGB', (600, 600), os.urandom(1080000)))\nprint('after')",
            ["png", "text"],
            id="large_picture_with_text",
        ),
        pytest.param(PLOT.replace("plt.show()", "plt.gcf()"), ["text", "png"], id="figure_as_value"),
        pytest.param("display('shown')", ["text"], id="displayed_text"),
        pytest.param("import pandas as pd\npd.DataFrame({'a': [1]})", ["text"], id="table"),
    ],
)
def test_each_value_is_sent_in_one_form(kernels: Any, name: str, code: str, kinds: list[str]) -> None:
    lines = kernels.run(code, name)
    assert ["png" if is_png(line) else "text" for line in lines] == kinds, str(lines)[:500]


def test_lines_arrive_while_the_cell_runs(kernels: Any, name: str) -> None:
    code = "import time\nprint('first', flush=True)\ntime.sleep(20)"
    body = json.dumps({"code": code, "session_id": name})
    with contextlib.closing(kernels.connect()) as connection:
        began = time.monotonic()
        connection.request("POST", f"{PREFIX}/execute", body, {"Content-Type": "application/json"})
        assert json.loads(connection.getresponse().readline()) == {"text": "first\n"}
        assert time.monotonic() - began < 15
    assert kernels.run("1", name, timeout=20) == [{"text": "1"}]  # the session is still usable after the client hung up


def test_a_cell_without_output_has_an_empty_body(kernels: Any, name: str) -> None:
    assert kernels.run("", name) == []
    assert kernels.run("x = 1", name) == []


@pytest.mark.parametrize("more", [{"variables": {"a": 1}}, {"timeout": None}, {"unknown": 1}, {"timeout": "5"}])
def test_other_fields_are_accepted(kernels: Any, more: dict[str, Any]) -> None:
    assert kernels.run("1", **more) == [{"text": "1"}]


def test_execute_sync_returns_everything_in_one_response(kernels: Any, name: str) -> None:
    body = {"code": f"{PLOT}\nprint('p')\n1/0", "session_id": name}
    answer = kernels.ask("POST", f"{PREFIX}/execute_sync", body).body
    assert (answer["resultCode"], answer["resultMsg"]) == (0, "success")
    data = answer["data"]
    assert data["texts"] == ["p\n"]
    assert base64.b64decode(data["images"][0]).startswith(b"\x89PNG")
    assert data["errors"][0]["error"] == "ZeroDivisionError: division by zero"


# ---- mistakes of the original


def test_a_timeout_is_reported_and_leaves_nothing_stale(kernels: Any, name: str) -> None:
    lines = kernels.run("print('one')\nx = 7\nwhile True: pass", name, timeout=3)
    assert lines[0] == {"text": "one\n"}
    assert lines[-1]["error"].startswith("TimeoutError: not done after 3 s")
    assert kernels.run("print(x)", name) == [{"text": "7\n"}]


def test_input_fails_at_once(kernels: Any, name: str) -> None:
    began = time.monotonic()
    (line,) = kernels.run("input()", name, timeout=30)
    assert line["error"].startswith("EOFError: ")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("death", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_dead_session_is_replaced(kernels: Any, name: str, death: str) -> None:
    kernels.run("x = 1", name)
    assert "error" in kernels.run(death, name)[-1]
    (line,) = kernels.run("x", name)
    assert line["error"] == "NameError: name 'x' is not defined"


def test_memory_is_limited(kernels: Any, name: str) -> None:
    (line,) = kernels.run("x = bytearray(3 * 10**9)\nfor i in range(0, len(x), 4096): x[i] = 1", name)
    assert line["error"].startswith("MemoryError")


# ---- sessions


def test_sessions_are_listed_and_terminated(kernels: Any, name: str) -> None:
    kernels.run("1", name)
    kernels.run("2", name)
    listed = kernels.ask("GET", f"{PREFIX}/sessions").body
    assert listed["total"] == len(listed["sessions"])
    shown = listed["sessions"][name]
    assert set(shown) == {"created_at", "last_activity", "is_busy", "execution_count"}
    assert (shown["execution_count"], shown["is_busy"]) == (2, False)
    assert abs(shown["created_at"] - time.time()) < 60
    ended = kernels.ask("DELETE", f"{PREFIX}/sessions/{name}")
    assert (ended.status, ended.body) == (200, {"message": f"Session {name} terminated"})
    gone = kernels.ask("DELETE", f"{PREFIX}/sessions/{name}")
    assert (gone.status, gone.body) == (404, {"detail": "Session not found"})
    assert name not in kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"]


def test_the_id_of_an_unnamed_session_is_in_a_header(kernels: Any) -> None:
    answer = kernels.ask("POST", f"{PREFIX}/execute", {"code": "y = 5"})
    assert kernels.run("y", answer.headers["X-Session-Id"]) == [{"text": "5"}]


@pytest.mark.parametrize("odd", ["user:7 é/…", "_under", "~tilde~41", "a" * 128, "0~~x"])
def test_any_text_names_a_session(kernels: Any, odd: str) -> None:
    kernels.run("z = 1", odd)
    assert kernels.run("z", odd) == [{"text": "1"}]
    assert odd in kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"]


def test_running_cell_is_interrupted(kernels: Any, name: str) -> None:
    lines: list[Any] = []
    kernels.run("x = 1", name)
    runner = threading.Thread(target=lambda: lines.extend(kernels.run("while True: pass", name, timeout=60)))
    runner.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"][name]["is_busy"]:
        assert time.monotonic() < deadline
    while runner.is_alive():  # the cell may be busy before it has begun
        assert time.monotonic() < deadline
        answer = kernels.ask("POST", f"{PREFIX}/sessions/{name}/interrupt")
        assert (answer.status, answer.body) == (200, {"message": f"Session {name} interrupted"})
        runner.join(0.2)
    assert lines[-1]["error"].startswith("KeyboardInterrupt")
    assert kernels.run("x", name) == [{"text": "1"}]


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/interrupt"), ("GET", "")])
def test_unknown_session_is_404(kernels: Any, method: str, path: str) -> None:
    answer = kernels.ask(method, f"{PREFIX}/sessions/unknown{path}")
    assert (answer.status, answer.body) == (404, {"detail": "Session not found"})


def test_a_session_is_created_with_files(kernels: Any, name: str) -> None:
    files = [
        {"path": "data/a.txt", "content": "hello"},
        {"filename": "b.bin", "content": base64.b64encode(b"\xff").decode(), "encoding": "base64"},
        {"path": "../x", "content": "no"},
        {"url": "http://127.0.0.1/secret", "id": "1"},
    ]
    body = {"session_id": name, "files": files, "file_urls": ["http://169.254.169.254/"]}
    data = kernels.ask("POST", f"{PREFIX}/sessions", body).body["data"]
    assert (data["session_id"], data["working_directory"]) == (name, "/work")
    assert data["downloaded_files"] == ["data/a.txt", "b.bin"]
    assert len(data["errors"]) == 3
    assert sum("fetches nothing" in error for error in data["errors"]) == 2
    assert kernels.run("open('data/a.txt').read(), open('b.bin', 'rb').read()", name) == [
        {"text": "('hello', b'\\xff')"}
    ]
    shown = kernels.ask("GET", f"{PREFIX}/sessions/{name}").body["data"]
    assert (shown["session_id"], shown["total_files"], shown["execution_count"]) == (name, 2, 1)
    assert {file["path"]: file["size"] for file in shown["files"]} == {"/work/data/a.txt": 5, "/work/b.bin": 1}


def test_many_clients_that_name_the_same_session_share_it(kernels: Any, name: str) -> None:
    answers: list[Any] = []
    runners = [threading.Thread(target=lambda: answers.append(kernels.run("1", name))) for _ in range(8)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert answers == [[{"text": "1"}]] * 8
    assert kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"][name]["execution_count"] == 8


def test_concurrent_requests_for_a_new_session_wait_for_it(start_kernels: Any, tmp_path: Path) -> None:
    """On a server that has just started, where opening a session is slow; the key allows only one."""
    keys = KeyFile(tmp_path / "keys.json")
    headers = {"Authorization": f"Bearer {keys.create(Key(name='few', max_sessions=1))}"}
    with start_kernels(server__keys_file=keys.path) as kernels, ThreadPoolExecutor(6) as pool:

        def ask(number: int) -> Any:
            body = {"code": f"print({number})", "session_id": "abc"}
            return kernels.ask("POST", "/api/v1/execute_sync", body, headers)

        answers = list(pool.map(ask, range(6)))
        assert [each.status for each in answers] == [200] * 6, answers
        assert [each.body["data"]["texts"] for each in answers] == [[f"{number}\n"] for number in range(6)]
        shown = kernels.ask("GET", f"{PREFIX}/sessions", headers=headers).body["sessions"]
        assert {name: each["execution_count"] for name, each in shown.items()} == {"abc": 6}


# ---- what is refused, and the rest


@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param(b"{}", "code", id="no_code"),
        pytest.param(b"nonsense", None, id="invalid_json"),
        pytest.param(b'{"code": 5}', "code", id="wrong_type"),
        pytest.param(b"[" * 100_000, None, id="nesting_bomb"),
        pytest.param(json.dumps({"code": "1", "session_id": "é" * 100}).encode(), None, id="long_name"),
    ],
)
def test_bad_body_is_422(kernels: Any, body: bytes, named: str | None) -> None:
    answer = kernels.ask("POST", f"{PREFIX}/execute", body)
    assert answer.status == 422
    (problem,) = answer.body["detail"]
    words = [each for each in problem["loc"] if isinstance(each, str)]  # the others are positions in the text
    assert words == ["body", *([named] if named else [])]
    assert problem["msg"]


@pytest.mark.parametrize("path", ["/health", "/api/v1/health", f"{PREFIX}/health"])
def test_health(kernels: Any, path: str) -> None:
    answer = kernels.ask("GET", path)
    assert answer.status == 200
    assert answer.body["status"] == "healthy"
    assert {"version", "active_sessions", "uptime"} <= set(answer.body)


def test_key_errors_have_the_original_wording(start_kernels: Any) -> None:
    with start_kernels(API_KEY="secret") as kernels:
        path = f"{PREFIX}/sessions"
        missing, wrong = kernels.ask("GET", path), kernels.ask("GET", path, headers={"Authorization": "Bearer x"})
        assert (missing.status, missing.body) == (401, {"detail": "API key required"})
        assert (wrong.status, wrong.body) == (401, {"detail": "Invalid API key"})
        assert kernels.ask("GET", path, headers={"Authorization": "Bearer secret"}).status == 200
        assert kernels.ask("GET", "/health").status == 200
        assert kernels.ask("GET", "/").status == 200


def test_settings_by_their_old_names(start_kernels: Any) -> None:
    with start_kernels(
        MAX_KERNELS="2", KERNEL_TIMEOUT="1", MAX_EXECUTION_TIME="2", ALLOWED_HOSTS='["example.org"]'
    ) as kernels:
        assert kernels.ask("GET", "/health", headers={"Host": "example.org"}).status == 200
        (line,) = kernels.run("while True: pass", "a")
        assert line["error"].startswith("TimeoutError: not done after 2 s")
        assert kernels.run("import time; time.sleep(2.5); print(1)", "a", timeout=60) == [{"text": "1\n"}]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while kernels.ask("GET", f"{PREFIX}/sessions").body["total"]:
            assert time.monotonic() < deadline, "an idle session is still there"


def test_full_server_replaces_the_oldest_idle_session(start_kernels: Any) -> None:
    with start_kernels(MAX_KERNELS="2") as kernels:
        for name in ("a", "b", "c"):
            assert kernels.run("1", name) == [{"text": "1"}]
        assert set(kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"]) == {"b", "c"}
        busy = threading.Thread(target=kernels.run, args=("import time; time.sleep(5)", "b"))
        busy.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"]["b"]["is_busy"]:
            assert time.monotonic() < deadline
        kernels.run("1", "d")
        assert set(kernels.ask("GET", f"{PREFIX}/sessions").body["sessions"]) == {"b", "d"}
        busy.join()
