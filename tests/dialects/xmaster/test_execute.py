"""POST /execute, as X-Master's contract describes it."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import pytest

from tests.dialects.xmaster.conftest import XMaster

FAILED = 'Traceback (most recent call last):\n  File "<string>", line {line}, in <module>\n{error}\n'


@pytest.mark.parametrize("session", [pytest.param({}, id="one_shot"), pytest.param({"session_id": "s1"}, id="session")])
class TestBoth:
    """Behaviour of one-shot programs and of session cells alike."""

    @pytest.mark.parametrize(
        ("code", "output", "error"),
        [
            pytest.param("print('hi')", "hi\n", None, id="ok"),
            pytest.param("x = 5\nx", "", None, id="the_last_value_is_not_echoed"),
            pytest.param(
                "print(1)\n1/0", "1\n", FAILED.format(line=2, error="ZeroDivisionError: division by zero"), id="fails"
            ),
            pytest.param("import sys\nprint(1)\nsys.exit(3)", "1\n", "Code called sys.exit(3)", id="exit"),
            pytest.param("sys.exit(0)", "", "Code called sys.exit(0)", id="exit_0"),
            pytest.param("exit()", "", "Code called sys.exit(None)", id="exit_none"),
            pytest.param("sys.exit('bye')", "", "Code called sys.exit(bye)", id="exit_text"),
            pytest.param("raise SystemExit", "", "Code called sys.exit(None)", id="raise_exit"),
            pytest.param("print('a', file=sys.stderr)\nprint('b')", "a\nb\n", None, id="stderr_is_output"),
            pytest.param("import os; os.write(2, b'raw\\n')", "raw\n", None, id="raw_stderr_is_output"),
            pytest.param("print(__name__.startswith('session_'))", "True\n", None, id="name"),
            pytest.param("print(os.getcwd() == current_dir)", "True\n", None, id="names_that_are_there"),
            pytest.param("class A: pass\nprint(A.__module__.startswith('session_'))", "True\n", None, id="class"),
            pytest.param("from tools import *\nprint(1)", "1\n", None, id="tools_is_a_module"),
            pytest.param("print('é', end='')", "é", None, id="print_is_print"),
            pytest.param("open('/etc/hostname')\nprint(1)", None, None, id="reading_is_fine"),
            pytest.param(
                "open('a.txt', 'w')", "", "OSError: File write operations are disabled\n", id="writing_is_disabled"
            ),
            pytest.param(
                "try:\n    1/0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error",
                "",
                "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call "
                "last):\n  File \"<string>\", line 4, in <module>\nKeyError: 'k'\n",
                id="a_cause",
            ),
            pytest.param("raise KeyboardInterrupt", "", "KeyboardInterrupt\n", id="interrupt"),
            pytest.param("print('\\d')", None, None, id="a_warning_of_the_compiler"),
            pytest.param("input()", "", "EOFError: EOF when reading a line\n", id="no_input"),
            pytest.param("def f(:\n  pass", "", "SyntaxError: invalid syntax\n", id="syntax"),
            pytest.param(
                "def f():\n    raise ValueError('x')\nf()",
                "",
                'Traceback (most recent call last):\n  File "<string>", line 3, in <module>\n'
                '  File "<string>", line 2, in f\nValueError: x\n',
                id="frames",
            ),
        ],
    )
    def test_situations(
        self, server: XMaster, session: dict[str, Any], code: str, output: str | None, error: str | None
    ) -> None:
        answer = server.execute(code, **session)
        if output is not None:
            assert answer["output"] == output
        if error is None:
            assert output is None or answer["error"] is None
        else:
            assert answer["error"].endswith(error)
        assert answer["session_id"] == session.get("session_id", "test_id")

    def test_timeout(self, server: XMaster, session: dict[str, Any]) -> None:
        answer = server.execute("print('before', flush=True)\nwhile True: pass", timeout=3, **session)
        assert (answer["output"], answer["error"]) == ("before\n", "Execution timed out after 3 seconds")
        assert 2.9 < answer["execution_time"] < 30

    def test_a_time_limit_of_zero(self, server: XMaster, session: dict[str, Any]) -> None:
        began = time.monotonic()
        answer = server.execute("print(1)", timeout=0, **session)
        assert (answer["output"], answer["error"]) == ("", "Execution timed out after 0 seconds")
        assert time.monotonic() - began < 5

    def test_output_is_returned_and_truncation_is_reported(self, server: XMaster, session: dict[str, Any]) -> None:
        body = server.execute("print('x' * 3_000_000)\nprint('the answer')", **session)
        assert body["output"].endswith("x\nthe answer\n")
        cut = server.execute("print('x' * 20_000_000)", **session)
        assert cut["output"].endswith("x\n[cut: output after the first 16384 KB was dropped]\n")

    def test_no_time_limit(self, server: XMaster, session: dict[str, Any]) -> None:
        assert server.execute("print(1)", timeout=None, **session)["output"] == "1\n"

    def test_a_long_time_limit_is_accepted(self, server: XMaster, session: dict[str, Any]) -> None:
        assert server.execute("print(1)", timeout=1800, **session)["output"] == "1\n"


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        pytest.param({"code": ""}, 400, "Code cannot be empty", id="empty"),
        pytest.param({"code": " \n\t"}, 400, "Code cannot be empty", id="blank"),
        pytest.param({}, 422, None, id="no_code"),
        pytest.param({"code": 5}, 422, None, id="code_is_a_number"),
        pytest.param({"code": "1", "timeout": 1.5}, 422, None, id="fractional_timeout"),
        pytest.param({"code": "1", "timeout": "soon"}, 422, None, id="timeout_is_a_word"),
        pytest.param({"code": "1", "session_id": 7}, 422, None, id="session_is_a_number"),
        pytest.param(
            {"code": "1", "context_id": None, "language": "js"},
            404,
            "context_id is a field of E2B's API, which is not served here",
            id="of_another_server",
        ),
        pytest.param([], 422, None, id="a_list"),
        pytest.param(b"{", 422, None, id="no_json"),
    ],
)
@pytest.mark.parametrize("path", ["/execute", "/submit"])
def test_a_bad_request(server: XMaster, path: str, body: Any, status: int, detail: str | None) -> None:
    answer = server.ask("POST", path, body)
    assert answer.status == status
    assert list(answer.body) == ["detail"]
    if detail is not None:
        assert answer.body["detail"] == detail
    else:
        assert answer.body["detail"][0]["loc"][0] == "body"


def test_the_example_of_the_contract(server: XMaster) -> None:
    first = server.execute("x=5\nprint(x)", session_id="s")
    assert (first["output"], first["error"], first["session_id"]) == ("5\n", None, "s")
    second = server.execute("print(x)\n1/0", session_id="s")
    assert second["output"] == "5\n"
    assert second["error"].endswith("ZeroDivisionError: division by zero\n")


def test_requests_without_a_session_share_nothing(server: XMaster) -> None:
    server.execute("leaked = 1")
    assert server.execute("print(leaked)")["error"].endswith("NameError: name 'leaked' is not defined\n")
    server.execute("leaked = 1", session_id="test_id")
    assert "NameError" in server.execute("print(leaked)")["error"]


def test_sessions_are_separate(server: XMaster) -> None:
    server.execute("mine = 'a'", session_id="apart-a")
    server.execute("mine = 'b'", session_id="apart-b")
    assert server.execute("print(mine)", session_id="apart-a")["output"] == "a\n"


def test_a_session_survives_exit_failure_and_timeout(server: XMaster) -> None:
    server.execute("kept = 1", session_id="survivor")
    for code in ("sys.exit(1)", "1/0", "while True: pass"):
        server.execute(code, session_id="survivor", timeout=1)
    assert server.execute("print(kept)", session_id="survivor")["output"] == "1\n"


def test_any_text_is_a_session_id(server: XMaster) -> None:
    for session_id in ("", "a b/c?d", "ü" * 300, "../../x"):
        server.execute("z = 1", session_id=session_id)
        answer = server.execute("print(z)", session_id=session_id)
        assert (answer["output"], answer["session_id"]) == ("1\n", session_id)
        server.ask("POST", "/del_session?session_id=" + "".join(f"%{byte:02x}" for byte in session_id.encode()))


def test_a_deleted_session_is_recreated_empty(server: XMaster) -> None:
    server.execute("old = 1", session_id="gone")
    assert server.ask("POST", "/del_session?session_id=gone").body == {"status": "success"}
    assert "NameError" in server.execute("print(old)", session_id="gone")["error"]


def test_deleting_needs_a_name_but_no_session(server: XMaster) -> None:
    assert server.ask("POST", "/del_session?session_id=never").body == {"status": "success"}
    refused = server.ask("POST", "/del_session", {"session_id": "x"})
    assert refused.status == 422
    assert refused.body["detail"][0]["loc"] == ["query", "session_id"]


def test_classes_of_a_program_can_be_pickled(server: XMaster) -> None:
    code = (
        "import pickle, multiprocessing\nclass Point:\n    pass\ndef twice(x):\n    return 2 * x\n"
        "print(type(pickle.loads(pickle.dumps(Point()))) is Point)\n"
        "with multiprocessing.Pool(2) as pool:\n    print(pool.map(twice, range(4)))"
    )
    assert server.execute(code)["output"] == "True\n[0, 2, 4, 6]\n"


@pytest.mark.parametrize("named", [False, True], ids=["one_shot", "sessions"])
def test_concurrent_responses_are_not_mixed_up(server: XMaster, named: bool) -> None:
    def one(number: int) -> tuple[int, str]:
        session = {"session_id": f"many-{number % 10}"} if named else {}
        return number, server.execute(f"v = {number}\nprint(v, {number})", **session)["output"]

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        for number, output in pool.map(one, range(100)):
            assert output == f"{number} {number}\n"
    for number in range(10):
        server.ask("POST", f"/del_session?session_id=many-{number}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param("import os; os._exit(4)", "Execution ended with exit code 4", id="hard_exit"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "Execution ended with signal SIGSEGV", id="crash"),
        pytest.param("x = bytearray(2_000_000_000)\nx[::4096] = b'1' * len(x[::4096])", "memory", id="memory"),
    ],
)
def test_endings_that_killed_the_original_server(server: XMaster, code: str, said: str) -> None:
    answer = server.execute(code)
    assert said in (answer["error"] or "") or "MemoryError" in (answer["error"] or "")
    assert server.execute("print(1)")["output"] == "1\n"


def test_it_answers_on_the_main_port_too(server: XMaster) -> None:
    answer = server.ask("POST", "/execute", {"code": "print(1)"}, api="native")
    assert answer.body["output"] == "1\n"
    assert server.ask("GET", "/health").body == {"status": "ok"}
    assert server.ask("POST", "/v1/execute", {"code": "print(1)"}).status == 404


def test_large_code_runs_unchanged(server: XMaster) -> None:
    code = f"x = {'a' * 1_500_000!r}\nprint(len(x))"
    assert server.execute(code)["output"] == "1500000\n"
    assert server.execute(code, session_id="large")["output"] == "1500000\n"
    assert server.ask("POST", "/submit", {"code": code, "session_id": "submitted-large"}).status == 200
    assert server.items("submitted-large")[-2]["content"] == "1500000\n"
