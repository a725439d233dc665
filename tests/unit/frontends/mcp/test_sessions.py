"""Sessions that tools name by an argument: over standard input and output, and over separate HTTP requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from belljar.frontends.access.keys import Key
from belljar.frontends.mcp import tools

if TYPE_CHECKING:
    from server_process import Serve

    from tests.conftest import Host
    from tests.unit.frontends.mcp.conftest import Site, Wire

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(params=["stdio", "http"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Call a tool; over HTTP each call is a separate request on a separate connection."""
    if request.param == "stdio":
        wire: Wire = request.getfixturevalue("wire")
        return wire.call
    site: Site = request.getfixturevalue("site")
    return lambda tool, **arguments: site.call(tool, arguments)


@pytest.fixture
def session_id(ask: Ask) -> Iterator[str]:
    opened = ask("open_session")["structuredContent"]["id"]
    yield opened
    ask("close_session", session_id=opened)


def _text(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


def test_variables_and_files_persist(ask: Ask, session_id: str) -> None:
    ask("run_code", session_id=session_id, code="x = 20; open('kept', 'w').write('y')")
    result = ask("run_code", session_id=session_id, code="print(open('kept').read())\nx + 1")
    assert _text(result) == "y\n21"
    assert result["structuredContent"]["result"] == "21"
    assert result["structuredContent"]["cell"] == 2
    assert result["structuredContent"]["session_id"] == session_id


def test_a_failing_cell_keeps_the_state(ask: Ask, session_id: str) -> None:
    failed = ask("run_code", session_id=session_id, code="x = 1\n1/0")
    assert failed["isError"] is False
    assert failed["structuredContent"]["status"] == "failed"
    assert "ZeroDivisionError" in _text(failed)
    assert _text(ask("run_code", session_id=session_id, code="x")) == "1"


def test_a_picture_in_a_session_arrives_once_and_without_its_repr(ask: Ask, session_id: str) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    result = ask("run_code", session_id=session_id, code=code)
    assert [block["type"] for block in result["content"]] == ["image"]


def test_files_can_be_uploaded_and_downloaded(ask: Ask, session_id: str) -> None:
    ask("upload_file", session_id=session_id, path="in/a.txt", content="hello")
    ask("upload_file", session_id=session_id, path="b.bin", content="/wA=", encoding="base64")
    ask("run_code", session_id=session_id, code="open('out.txt', 'w').write(open('in/a.txt').read().upper())")
    listed = ask("list_files", session_id=session_id)["structuredContent"]["files"]
    assert [(each["path"], each["bytes"]) for each in listed] == [("b.bin", 2), ("in/a.txt", 5), ("out.txt", 5)]
    got = ask("download_file", session_id=session_id, path="out.txt")["content"][1]["resource"]
    assert (got["text"], got["mimeType"]) == ("HELLO", "text/plain")
    assert got["uri"] == f"session://{session_id}/files/out.txt"
    binary = ask("download_file", session_id=session_id, path="b.bin")["content"][1]["resource"]
    assert base64.b64decode(binary["blob"]) == b"\xff\x00"
    with_file = ask(
        "run_code",
        session_id=session_id,
        code="print(open('given').read()); open('made.csv', 'w').write('1,2')",
        files=[{"path": "given", "content": "given"}],
        artifacts=["*.csv"],
    )
    assert _text(with_file).startswith("given")
    assert with_file["content"][1]["resource"]["text"] == "1,2"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        pytest.param("download_file", {"path": "none"}, "none", id="no_such_file"),
        pytest.param("upload_file", {"path": "../up", "content": ""}, "..", id="path_outside"),
        pytest.param("branch_session", {"count": 99}, "<= 16", id="too_many_branches"),
        pytest.param("run_code", {"code": "1", "stdin": "x"}, "stdin", id="standard_input_of_a_cell"),
    ],
)
def test_bad_arguments_are_reported(
    ask: Ask, session_id: str, tool: str, arguments: dict[str, Any], words: str
) -> None:
    result = ask(tool, session_id=session_id, **arguments)
    assert result["isError"] is True
    assert words in _text(result)


def test_a_closed_session_is_reported_as_closed(ask: Ask) -> None:
    opened = ask("open_session")["structuredContent"]["id"]
    assert ask("close_session", session_id=opened)["isError"] is False
    result = ask("run_code", session_id=opened, code="1")
    assert result["isError"] is True
    assert "was closed" in _text(result)


def test_results_match_their_schemas(ask: Ask, session_id: str) -> None:
    schemas = {tool.name: tool.gives for tool in tools.ALL}
    asked: dict[str, dict[str, Any]] = {
        "run_code": {"code": "1"},
        "list_files": {},
        "execute_python_code": {"code": "1"},
        "list_active_sessions": {},
    }
    for name, arguments in asked.items():
        given = arguments if name == "list_active_sessions" else {"session_id": session_id, **arguments}
        schema = schemas[name]
        assert schema is not None
        jsonschema.validate(ask(name, **given)["structuredContent"], schema)
    opened = ask("open_session")["structuredContent"]
    jsonschema.validate(opened, schemas["open_session"] or {})
    ask("close_session", session_id=opened["id"])


# ---- the kernel server's tools


def test_a_kernel_session_is_opened_reused_and_closed(ask: Ask) -> None:
    first = json.loads(_text(ask("execute_python_code", code="x = 5\nprint('hi')\nx")))
    assert first == {"output": "hi\n5", "images": [], "session_id": first["session_id"]}
    again = json.loads(_text(ask("execute_python_code", code="x + 1", session_id=first["session_id"])))
    assert again["output"] == "6"
    listed = json.loads(_text(ask("list_active_sessions")))
    assert listed["sessions"][first["session_id"]]["execution_count"] == 2
    assert listed["total"] == len(listed["sessions"])
    ended = json.loads(_text(ask("terminate_session", session_id=first["session_id"])))
    assert ended == {"message": f"Session {first['session_id']} terminated"}
    assert "error" in json.loads(_text(ask("terminate_session", session_id=first["session_id"])))


def test_an_unknown_kernel_session_is_opened_under_its_name(ask: Ask) -> None:
    made = json.loads(_text(ask("execute_python_code", code="1", session_id="of-my-own")))
    assert made["session_id"] == "of-my-own"
    ask("terminate_session", session_id="of-my-own")


def test_a_kernel_error_has_its_name_and_traceback(ask: Ask) -> None:
    answer = json.loads(_text(ask("execute_python_code", code="nope", session_id="errors")))
    assert answer["error"] == "NameError: name 'nope' is not defined"
    assert answer["traceback"]
    ask("terminate_session", session_id="errors")


def test_any_text_can_name_a_kernel(ask: Ask) -> None:
    made = json.loads(_text(ask("execute_python_code", code="x = 1", session_id="user 1@example.com")))
    assert made["session_id"] == "user 1@example.com"
    assert "user 1@example.com" in json.loads(_text(ask("list_active_sessions")))["sessions"]
    ended = json.loads(_text(ask("terminate_session", session_id="user 1@example.com")))
    assert ended == {"message": "Session user 1@example.com terminated"}


def test_a_kernel_that_timed_out_or_died_shows_no_old_output(ask: Ask) -> None:
    late = ask("execute_python_code", code="import time; print('old'); time.sleep(9)", session_id="ghost", timeout=1)
    assert json.loads(_text(late))["error"].startswith("TimeoutError: not done after 1 s")
    assert json.loads(_text(ask("execute_python_code", code="print('new')", session_id="ghost")))["output"] == "new\n"
    ask("execute_python_code", code="import os; os._exit(1)", session_id="ghost")
    assert (
        json.loads(_text(ask("execute_python_code", code="print('alive')", session_id="ghost")))["output"] == "alive\n"
    )
    ask("terminate_session", session_id="ghost")


def test_a_kernel_picture_is_in_the_result(ask: Ask) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    answer = json.loads(_text(ask("execute_python_code", code=code, session_id="plots")))
    (image,) = answer["images"]
    assert (image["type"], image["format"]) == ("image", "png")
    assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    ask("terminate_session", session_id="plots")


def test_concurrent_calls_that_name_a_new_kernel_session_share_it(open_site: Serve) -> None:
    """On a server that has just started, where opening a session takes long; the key allows only one."""
    with open_site(server__api_key="operator-key") as site, ThreadPoolExecutor(6) as pool:
        bearer = {"Authorization": f"Bearer {site.keys.create(Key(name='few', max_sessions=1))}"}

        def ask(number: int) -> dict[str, Any]:
            arguments = {"code": f"print({number})", "session_id": "shared"}
            return site.call("execute_python_code", arguments, **bearer)

        try:
            results = list(pool.map(ask, range(6)))
            assert [each["isError"] for each in results] == [False] * 6, results
            assert [json.loads(_text(each))["output"] for each in results] == [f"{number}\n" for number in range(6)]
        finally:
            site.keys.revoke("few")


# ---- resources, keys, cancelling and branching


def test_a_session_and_its_files_can_be_read_as_resources(wire: Wire) -> None:
    opened = wire.call("open_session", files=[{"path": "a b.txt", "content": "text"}])["structuredContent"]["id"]
    (state,) = wire.ask("resources/read", {"uri": f"session://{opened}"})["contents"]
    assert json.loads(state["text"])["id"] == opened
    (file,) = wire.ask("resources/read", {"uri": f"session://{opened}/files/a%20b.txt"})["contents"]
    assert file["text"] == "text"
    climbing = {"uri": f"session://{opened}/files/../../etc/passwd"}
    assert wire.finish(wire.begin("resources/read", climbing))["error"]["code"] == -32602
    templates = wire.ask("resources/templates/list")["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == [
        "session://{session_id}",
        "session://{session_id}/files/{+path}",
    ]
    wire.call("close_session", session_id=opened)


def test_a_session_belongs_to_its_key(open_site: Serve) -> None:
    with open_site(server__api_key="one") as site:
        opened = site.call("open_session", {}, Authorization="Bearer one")["structuredContent"]["id"]
        status, body = site.post("tools/list")
        assert status == 401, body
        result = site.call("run_code", {"code": "print(1)", "session_id": opened}, Authorization="Bearer one")
        assert result["content"][0]["text"] == "1"


def test_a_session_belongs_to_a_key_and_not_to_its_name(open_site: Serve) -> None:
    """A later key of the same name must not reach the sessions of the first."""
    with open_site(server__api_key="operator-key") as site:
        first = {"Authorization": f"Bearer {site.keys.create(Key(name='again'))}"}
        opened = site.call("open_session", {}, **first)["structuredContent"]["id"]
        uris = [f"session://{opened}", f"session://{opened}/files/kept"]
        site.call("run_code", {"code": "open('kept', 'w').write('x')", "session_id": opened}, **first)
        assert all("result" in site.post("resources/read", {"uri": uri}, **first)[1] for uri in uris)
        assert site.ask("GET", f"/v1/sessions/{opened}", headers=first).status == 200
        site.keys.revoke("again")
        second = {"Authorization": f"Bearer {site.keys.create(Key(name='again'))}"}
        try:
            assert all("error" in site.post("resources/read", {"uri": uri}, **second)[1] for uri in uris)
            for tool, more in (("run_code", {"code": "1"}), ("list_files", {}), ("close_session", {})):
                assert site.call(tool, {"session_id": opened, **more}, **second)["isError"] is True
            assert site.call("list_active_sessions", {}, **second)["structuredContent"]["total"] == 0
        finally:
            site.keys.revoke("again")


def test_the_number_of_sessions_of_a_key_is_limited(open_site: Serve) -> None:
    with open_site(server__api_key="operator-key") as site:
        bearer = {"Authorization": f"Bearer {site.keys.create(Key(name='few', max_sessions=1))}"}
        try:
            opened = site.call("open_session", {}, **bearer)["structuredContent"]["id"]
            for tool, arguments in (
                ("open_session", {}),
                ("branch_session", {"session_id": opened}),
                ("execute_python_code", {"code": "1"}),
            ):
                refused = site.call(tool, arguments, **bearer)
                assert refused["isError"] is True
                assert "may have 1 sessions" in _text(refused)
            site.call("close_session", {"session_id": opened}, **bearer)
            assert site.call("open_session", {}, **bearer)["isError"] is False
        finally:
            site.keys.revoke("few")


def test_a_cancelled_cell_is_interrupted_and_the_session_survives(wire: Wire, host: Host) -> None:
    opened = wire.call("open_session")["structuredContent"]["id"]
    wire.call("run_code", session_id=opened, code="x = 3")
    waits = "import subprocess; subprocess.run(['sleep', '97.531'])"
    arguments = {"code": waits, "session_id": opened, "timeout": 120}
    number = wire.begin("tools/call", {"name": "run_code", "arguments": arguments})
    host.wait_until(lambda: _sleeps(host), "the cell runs")
    wire.send({"method": "notifications/cancelled", "params": {"requestId": number}})
    host.wait_until(lambda: not _sleeps(host), "the cell is gone", 15)
    assert _text(wire.call("run_code", session_id=opened, code="x")) == "3"
    wire.call("close_session", session_id=opened)


def _sleeps(host: Host) -> list[Any]:
    return [process for process in host.guest_processes() if process.command == "sleep 97.531"]


def test_a_branch_starts_with_the_state_and_is_independent(ask: Ask, session_id: str) -> None:
    ask("run_code", session_id=session_id, code="x = [1]; open('f', 'w').write('one')")
    made = ask("branch_session", session_id=session_id, count=2)
    copies = [each["id"] for each in made["structuredContent"]["sessions"]]
    assert _text(made) == "\n".join(f"session_id: {copy}" for copy in copies)
    assert [each["parent"] for each in made["structuredContent"]["sessions"]] == [session_id, session_id]
    ask("run_code", session_id=copies[0], code="x.append(2); open('f', 'w').write('two')")
    answer = [
        _text(ask("run_code", session_id=each, code="print(x, open('f').read())")) for each in (session_id, *copies)
    ]
    assert answer == ["[1] one", "[1, 2] two", "[1] one"]
    for copy in copies:
        ask("close_session", session_id=copy)
