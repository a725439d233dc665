"""Recorded requests and responses, replayed over real sockets with and without a content type."""

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


def test_both_ports_give_the_same_answer(server: Any) -> None:
    body = json.dumps({"code": "print(1)", "timeout": 5})
    answers = [server.ask("POST", "/py_exec", body, api=api).text for api in ("native", "code_exec")]
    assert answers == ["0\n1\n"] * 2


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/", 200), ("/nothing", 404), ("/v1/info", 404)])
def test_liveness_paths(server: Any, path: str, status: int) -> None:
    answer = server.ask("GET", path)
    assert answer.status == status
    if status == 200:
        assert (answer.kind, answer.text) == ("text/plain", "OK")


def test_the_main_port_has_the_native_health_check(server: Any) -> None:
    assert json.loads(server.ask("GET", "/health", api="native").text)["status"] == "ok"


@pytest.mark.parametrize("path", ["/py_exec", "/any_exec", "/py_coverage"])
def test_other_methods_are_refused(server: Any, path: str) -> None:
    assert server.ask("GET", path).status == 405


def test_an_unknown_host_header_does_not_block_a_client_forever(server: Any) -> None:
    """The original client retries forever if GET / returns anything but 200 or 404."""
    other_host = {"Host": "evil.example"}
    assert server.ask("GET", "/", headers=other_host).status == 404
    answer = server.ask("POST", "/py_exec", "{}", other_host)
    assert answer.status == 403
    assert "allowed_hosts" in json.loads(answer.text)["detail"]


def test_long_output_is_complete(server: Any) -> None:
    """The original times out above 64 KiB in /py_exec and shows only 1,024 bytes in /any_exec."""
    code = "import sys\nprint('x' * 300_000)\nprint('y' * 300_000, file=sys.stderr)\n"
    assert server.post("/py_exec", code=code, timeout=10) == "0\n" + "x" * 300_000 + "\n"
    assert server.post("/py_exec", code=code + "sys.exit(1)", timeout=10) == "1\n" + "y" * 300_000 + "\n"
    reply = json.loads(server.post("/any_exec", code=code, lang="python", timeout=10).partition("\n")[2])
    assert (len(reply["stdout"]), len(reply["stderr"])) == (300_001, 300_001)


def test_truncation_is_reported_on_stderr_only(start: Any) -> None:
    note = "[cut: output after the first 4 KB was dropped]\n"
    loud = "import sys\nprint('x' * 5000)\n"
    louder = loud + "print('y' * 5000, file=sys.stderr)\n"
    with start(default_limits__output_bytes=4096, ceiling_limits__output_bytes=4096) as server:

        def run_any(code: str) -> dict[str, Any]:
            reply: dict[str, Any] = json.loads(
                server.post("/any_exec", code=code, lang="python", timeout=10).partition("\n")[2]
            )
            return reply

        assert server.post("/py_exec", code=louder, timeout=10) == "0\n" + "x" * 4096
        assert server.post("/py_exec", code=louder + "sys.exit(1)", timeout=10) == "1\n" + "y" * 4096 + "\n" + note
        assert server.post("/py_exec", code=loud + "sys.exit('no')", timeout=10) == "1\nno\n"  # complete
        whole = {"status": "OK", "exit_code": 0, "stdout": "x" * 4096}
        assert run_any(loud) == {**whole, "stderr": note}
        assert run_any(louder) == {**whole, "stderr": "y" * 4096 + "\n" + note}
        assert run_any("print(1)")["stderr"] == ""


def test_invalid_utf_8_is_replaced(server: Any) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'a\\xffb')"
    assert server.post("/py_exec", code=code, timeout=5) == "0\na�b"


def test_a_body_over_the_limit_is_refused_with_a_reason(start: Any) -> None:
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


def test_the_server_survives_a_memory_bomb_and_an_attack(server: Any) -> None:
    bomb = server.post("/py_exec", code="a = []\nwhile True: a.append([42] * 10000)", timeout=30)
    assert bomb.startswith("1\n")
    assert "MemoryError" in bomb
    attack = "import os\nfor pid in (os.getppid(), 1, -1):\n    try: os.kill(pid, 9)\n    except OSError: pass"
    assert server.post("/py_exec", code=attack, timeout=5).startswith(("0\n", "1\n"))
    assert server.process.poll() is None
    assert server.post("/py_exec", code="print(1)", timeout=5) == "0\n1\n"
