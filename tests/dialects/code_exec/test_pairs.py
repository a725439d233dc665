"""Requests with their answers, replayed over real sockets; without a content type, as one of its clients sends them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAIRS = {pair["name"]: pair for pair in json.loads((Path(__file__).parent / "pairs.json").read_text("utf-8"))}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", [{}, {"Content-Type": "application/json"}], ids=["bare", "json"])
def test_pair(server: Any, name: str, kind: dict[str, str]) -> None:
    pair = PAIRS[name]
    sent = pair["raw"] if "raw" in pair else json.dumps(pair["body"])
    answer = server.ask("POST", pair["path"], sent, kind)
    assert (answer.status, answer.kind) == (200, "text/plain")
    if "text" in pair:
        assert answer.text == pair["text"]
    elif "json" in pair:
        assert json.loads(answer.text) == pair["json"]
    elif "any" in pair:
        first, _, rest = answer.text.partition("\n")
        assert (first, rest[-1:]) == ("0", "\n")
        assert json.loads(rest) == pair["any"]
    else:
        assert re.fullmatch(pair["pattern"], answer.text), answer.text


def test_both_ports_answer_alike(server: Any) -> None:
    body = json.dumps({"code": "print(1)", "timeout": 5})
    answers = [server.ask("POST", "/py_exec", body, api=api).text for api in ("native", "code_exec")]
    assert answers == ["0\n1\n"] * 2


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/", 200), ("/nothing", 404), ("/v1/info", 404)])
def test_signs_of_life(server: Any, path: str, status: int) -> None:
    answer = server.ask("GET", path)
    assert answer.status == status
    if status == 200:
        assert (answer.kind, answer.text) == ("text/plain", "OK")


def test_health_of_the_main_port_is_our_own(server: Any) -> None:
    assert json.loads(server.ask("GET", "/health", api="native").text)["status"] == "ok"


@pytest.mark.parametrize("path", ["/py_exec", "/any_exec", "/py_coverage"])
def test_other_methods_are_refused(server: Any, path: str) -> None:
    assert server.ask("GET", path).status == 405


def test_foreign_host_does_not_make_a_client_wait_for_ever(server: Any) -> None:
    """It would for anything but 200 and 404 at GET /."""
    foreign = {"Host": "evil.example"}
    assert server.ask("GET", "/", headers=foreign).status == 404
    answer = server.ask("POST", "/py_exec", "{}", foreign)
    assert answer.status == 403
    assert "allowed_hosts" in json.loads(answer.text)["detail"]


def test_much_output_is_whole(server: Any) -> None:
    """The original ends in Timeout past 64 KiB here, and shows 1,024 bytes there."""
    code = "import sys\nprint('x' * 300_000)\nprint('y' * 300_000, file=sys.stderr)\n"
    assert server.post("/py_exec", code=code, timeout=10) == "0\n" + "x" * 300_000 + "\n"
    assert server.post("/py_exec", code=code + "sys.exit(1)", timeout=10) == "1\n" + "y" * 300_000 + "\n"
    told = json.loads(server.post("/any_exec", code=code, lang="python", timeout=10).partition("\n")[2])
    assert (len(told["stdout"]), len(told["stderr"])) == (300_001, 300_001)


def test_output_that_is_cut_is_told_on_stderr_alone(start: Any) -> None:
    note = "[cut: output after the first 4 KB was dropped]\n"
    loud = "import sys\nprint('x' * 5000)\n"
    furious = loud + "print('y' * 5000, file=sys.stderr)\n"
    with start(default_limits__output_bytes=4096, ceiling_limits__output_bytes=4096) as server:

        def run_any(code: str) -> dict[str, Any]:
            told: dict[str, Any] = json.loads(
                server.post("/any_exec", code=code, lang="python", timeout=10).partition("\n")[2]
            )
            return told

        assert server.post("/py_exec", code=furious, timeout=10) == "0\n" + "x" * 4096
        assert server.post("/py_exec", code=furious + "sys.exit(1)", timeout=10) == "1\n" + "y" * 4096 + "\n" + note
        assert server.post("/py_exec", code=loud + "sys.exit('no')", timeout=10) == "1\nno\n"  # all of what is shown
        whole = {"status": "OK", "exit_code": 0, "stdout": "x" * 4096}
        assert run_any(loud) == {**whole, "stderr": note}
        assert run_any(furious) == {**whole, "stderr": "y" * 4096 + "\n" + note}
        assert run_any("print(1)")["stderr"] == ""


def test_bytes_that_are_no_text_are_replaced(server: Any) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'a\\xffb')"
    assert server.post("/py_exec", code=code, timeout=5) == "0\na�b"


def test_body_over_the_limit_is_refused_in_words(start: Any) -> None:
    with start(server__body_bytes=100_000, server__bodies_bytes=200_000) as small:
        answer = small.ask("POST", "/py_exec", b"x" * 200_000)
        assert (answer.status, answer.kind) == (413, "text/plain")
        assert "100,000 bytes" in json.loads(answer.text)["detail"]
        assert small.post("/py_exec", code="print(1)", timeout=5) == "0\n1\n"


def test_keys(start: Any) -> None:
    body = {"code": "print(1)", "timeout": 5, "json_resp": True}
    good = {"Authorization": "Bearer s3cret"}
    with start(server__api_key="s3cret") as locked:
        assert locked.ask("GET", "/").status == 200
        assert locked.ask("GET", "/health").status == 200
        refused = locked.ask("POST", "/py_exec", json.dumps(body))
        assert (refused.status, list(json.loads(refused.text))) == (401, ["detail"])
        assert json.loads(locked.ask("POST", "/py_exec", json.dumps(body), good).text)["status"] == 0
        wrapped = json.dumps({"args": body})
        assert locked.ask("POST", "/", wrapped).status == 401
        answer = json.loads(locked.ask("POST", "/", wrapped, good).text)
        assert answer["status"] == "SUCCESS"
        assert json.loads(answer["result"]["result"]) == {"output": "1\n", "status": 0}


def test_memory_bomb_and_attack_leave_the_server_alone(server: Any) -> None:
    bomb = server.post("/py_exec", code="a = []\nwhile True: a.append([42] * 10000)", timeout=30)
    assert bomb.startswith("1\n")
    assert "MemoryError" in bomb
    attack = "import os\nfor pid in (os.getppid(), 1, -1):\n    try: os.kill(pid, 9)\n    except OSError: pass"
    assert server.post("/py_exec", code=attack, timeout=5).startswith(("0\n", "1\n"))
    assert server.process.poll() is None
    assert server.post("/py_exec", code="print(1)", timeout=5) == "0\n1\n"
