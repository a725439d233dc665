"""POST /v1/execute: what is answered, and what is told on the way."""

from __future__ import annotations

import base64
import json
import statistics
import time
from typing import Any

import pytest
from api_server import Server

BODY = {
    *("id", "language", "status", "exit_code", "signal", "stdout", "stderr", "truncated", "error", "displays"),
    *("artifacts", "compile", "tool_calls", "coverage", "usage"),
}


def read_events(lines: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.strip()]


def test_answer_has_every_documented_field(server: Server) -> None:
    answer = server.execute("import sys\nprint(input())\nprint('e', file=sys.stderr)", stdin="hi\n", language="py")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.body
    assert set(body) == BODY
    assert (body["status"], body["exit_code"], body["stdout"], body["stderr"]) == ("ok", 0, "hi\n", "e\n")
    assert body["language"] == "python"
    assert body["id"].startswith("x_")
    assert body["truncated"] == {"stdout": False, "stderr": False}
    assert set(body["usage"]) == {"wall_seconds", "cpu_seconds", "memory_peak_bytes", "queue_seconds"}


@pytest.mark.parametrize(
    ("code", "asked", "expected"),
    [
        pytest.param("1/0", {}, {"status": "failed", "exit_code": 1}, id="failed"),
        pytest.param("import os; os.abort()", {}, {"status": "crashed", "signal": "SIGABRT"}, id="crashed"),
        pytest.param("while True: pass", {"timeout": 0.3}, {"status": "timed_out", "exit_code": None}, id="timed_out"),
        pytest.param(
            "b = bytearray(200_000_000)", {"limits": {"memory_mb": 64}}, {"status": "out_of_memory"}, id="out_of_memory"
        ),
        pytest.param(
            "print('x' * 5000)",
            {"limits": {"output_kb": 1}},
            {"truncated": {"stdout": True, "stderr": False}},
            id="cut",
        ),
        pytest.param("import sys; print(sys.argv[1:])", {"args": ["a", "b"]}, {"stdout": "['a', 'b']\n"}, id="args"),
        pytest.param("import os; print(os.environ['K'])", {"env": {"K": "v"}}, {"stdout": "v\n"}, id="env"),
        pytest.param(
            "import os; os.write(1, b'\\xff\\xed\\xa0\\x80\\x00\\xe2\\x80\\xa8')",
            {},
            {"stdout": "\ufffd\ufffd\ufffd\ufffd\0\u2028"},
            id="any_bytes_give_valid_json",
        ),
        pytest.param(
            "print(1)",
            {"network": False, "tools": False, "coverage": False, "restrict": None, "timeout": None, "limits": None},
            {"status": "ok"},
            id="neutral_values",
        ),
        pytest.param("print(1)", {"tools": []}, {"status": "ok"}, id="no_tools"),
        pytest.param("import os", {"restrict": {}}, {"status": "denied", "exit_code": 1, "stdout": ""}, id="denied"),
        pytest.param("import os", {"restrict": {"imports": ["os"]}}, {"status": "ok"}, id="allowed_import"),
        pytest.param(
            "print('abcdef')",
            {"restrict": {"max_print_length": 3}},
            {"status": "ok", "truncated": {"stdout": True, "stderr": False}},
            id="print_is_cut",
        ),
    ],
)
def test_a_program_is_answered_with_200(server: Server, code: str, asked: Any, expected: Any) -> None:
    answer = server.execute(code, **asked)
    assert answer.status == 200, answer.body
    assert {name: answer.body[name] for name in expected} == expected


def test_uncaught_exception_is_told(server: Server) -> None:
    error = server.execute("def f():\n    raise KeyError('k')\nf()").body["error"]
    assert (error["type"], error["message"]) == ("KeyError", "'k'")
    assert error["traceback"][0] == "Traceback (most recent call last):"


def test_files_go_in_and_artifacts_come_out(server: Server) -> None:
    files = [
        {"path": "in/a.txt", "content": "ä"},
        {"path": "b.bin", "content": base64.b64encode(b"\xff\0").decode(), "encoding": "base64"},
    ]
    code = "open('out.bin', 'wb').write(open('in/a.txt', 'rb').read() + open('b.bin', 'rb').read())"
    (artifact,) = server.execute(code, files=files, artifacts=["*.bin", "!"]).body["artifacts"][-1:]
    content = base64.b64decode(artifact["content"])
    assert (artifact["path"], artifact["encoding"], artifact["bytes"]) == ("out.bin", "base64", 4)
    assert content == "ä".encode() + b"\xff\0"


def test_open_figure_becomes_a_display(server: Server) -> None:
    (display,) = server.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])", timeout=30).body["displays"]
    assert display["mime"] == "image/png"
    assert base64.b64decode(display["data"]).startswith(b"\x89PNG")


def test_ndjson_tells_every_kind_of_event_in_order(server: Server) -> None:
    code = "import sys\nprint('o', flush=True)\nprint('e', file=sys.stderr)\n"
    code += "import matplotlib.pyplot as p\np.plot([1])\np.show()"
    with server.streaming(code, timeout=30) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "application/x-ndjson"
        events = read_events(response)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert sorted(kinds[1:-1]) == ["display", "stderr", "stdout"]
    by_kind = {event["event"]: event for event in events}
    assert set(by_kind["started"]) == {"event", "id"}
    assert by_kind["stdout"]["text"] == "o\n"
    assert by_kind["stderr"]["text"] == "e\n"
    assert base64.b64decode(by_kind["display"]["data"]).startswith(b"\x89PNG")
    assert set(by_kind["finished"]) == {"event"} | BODY - {"stdout", "stderr", "displays"}
    assert by_kind["finished"]["id"] == by_kind["started"]["id"]


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/event-stream"])
def test_a_line_of_a_stream_is_one_line_for_readers_of_lines(server: Server, kind: str) -> None:
    with server.streaming(r"print('a\x85b\u2028c\u2029d')", accept=kind) as response:
        text = response.read().decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "{" in line]
    assert len(lines) == text.count("\n" if kind == "application/x-ndjson" else "data: ")
    assert [event["text"] for event in map(json.loads, lines) if event["event"] == "stdout"] == [
        "a\x85b\u2028c\u2029d\n"
    ]


def test_server_sent_events_carry_the_same(server: Server) -> None:
    with server.streaming("print('a\\nb')", accept="text/event-stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.read().decode().split("\n\n")[:-1]
    told = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['event']}"
        told.append(event)
    first, *output, last = told
    assert (first["event"], last["event"]) == ("started", "finished")
    assert {event["event"] for event in output} == {"stdout"}
    assert "".join(event["text"] for event in output) == "a\nb\n"


def test_output_arrives_while_the_program_runs(server: Server) -> None:
    """The same clock on both sides; the median, because this machine may be busy with others."""
    code = "import time\nfor _ in range(9):\n    print(time.time(), flush=True)\n    time.sleep(0.05)"
    delays = []
    with server.streaming(code) as response:
        for line in response:
            arrived = time.time()
            event = json.loads(line)
            if event["event"] == "stdout":
                delays.append(arrived - float(event["text"]))
    assert len(delays) == 9
    assert statistics.median(delays) < 0.05


def test_slow_reader_gets_every_byte(server: Server) -> None:
    size = 6_000_000
    code = f"import sys\nfor at in range({size} // 1000):\n    sys.stdout.write(f'{{at:08}}' + 'x' * 992)"
    with server.streaming(code, limits={"output_kb": 16384, "wall_seconds": 60}) as response:
        first = json.loads(response.readline())
        assert first["event"] == "started"
        texts = []
        for count, line in enumerate(response):
            event = json.loads(line)
            if event["event"] == "stdout":
                texts.append(event["text"])
            if count < 10:
                time.sleep(0.02)  # the slowness under test, not a wait for something
    text = "".join(texts)
    assert event["status"] == "ok"
    assert len(text) == size
    assert all(text[at * 1000 : at * 1000 + 8] == f"{at:08}" for at in range(size // 1000))


def test_error_before_the_start_is_a_status_also_for_streams(server: Server) -> None:
    with server.streaming("print(1)", environment="nobody-made-this") as response:
        assert response.status == 422
        assert json.loads(response.read())["error"]["code"] == "unknown_environment"
