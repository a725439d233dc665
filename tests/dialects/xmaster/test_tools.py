"""Tools as plain names, the result stream, and the other calls of X-Master's code server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

from tests.dialects.xmaster.conftest import XMaster
from tests.unit.tools.outside import PAGE, Outside

BOTH = pytest.mark.parametrize("session", [{}, {"session_id": "tools"}], ids=["one_shot", "session"])


def keys(item: dict[str, Any]) -> set[str]:
    return set(item)


@BOTH
def test_a_tool_is_a_plain_name(server: XMaster, session: dict[str, Any]) -> None:
    code = (
        "r = web_search('bells')\n"
        "print(len(r['tool_result']['organic']), isinstance(r['tool_elapsed_time'], float), sorted(r))\n"
        "print(web_search('bells', 2)['tool_result']['organic'][1]['title'])"
    )
    assert server.execute(code, **session)["output"] == "10 True ['tool_elapsed_time', 'tool_result']\nbells 1\n"


@BOTH
def test_the_loop_that_agents_write(server: XMaster, session: dict[str, Any], outside: Outside) -> None:
    code = f"""
from concurrent.futures import ThreadPoolExecutor
def visit(keywords):
    links = [each['link'] for each in web_search(keywords)['tool_result']['organic']]
    return web_parse("{outside.url}/page", keywords)['tool_result']['score'], len(links)
with ThreadPoolExecutor(20) as pool:
    print(set(pool.map(visit, [f"bell {{each % 5}}" for each in range(40)])))
"""
    assert server.execute(code, timeout=60, **session) | {"execution_time": 0} == {
        "output": "{(0.9, 10)}\n",
        "error": None,
        "execution_time": 0,
        "session_id": session.get("session_id", "test_id"),
    }


@BOTH
@pytest.mark.parametrize("line", ["from tools import *", "from tools import add", "import tools; add = tools.add"])
def test_the_module_has_the_same_functions(server: XMaster, session: dict[str, Any], line: str) -> None:
    assert server.execute(f"{line}\nprint(add(3)['tool_result'])", **session)["output"] == "5\n"


@BOTH
def test_a_tool_that_fails_is_none(server: XMaster, session: dict[str, Any]) -> None:
    assert (
        server.execute("print(fail(), add('x'), call_tool('nothing', {}))", **session)["output"] == "None None None\n"
    )


@BOTH
def test_tools_are_called_by_name(server: XMaster, session: dict[str, Any]) -> None:
    code = "print(call_tool('add', {'a': 4})['tool_result'], call_tool('find-page', {'query': 'x'}) is not None)"
    assert server.execute(code, **session)["output"] == "6 True\n"


@pytest.mark.parametrize(
    "code", ["print(globals()['add'](1)['tool_result'])", "exec('print(add(1)[\"tool_result\"])')"]
)
def test_a_tool_is_found_however_it_is_named(server: XMaster, code: str) -> None:
    assert server.execute(code)["output"] == "3\n"


@BOTH
def test_a_result_that_is_json_is_decoded(server: XMaster, session: dict[str, Any]) -> None:
    said = server.execute("print(search('bell')['tool_result']['organic'])", **session)["output"]
    assert said == "['bell', 'bell']\n"


def test_programs_see_no_key(server: XMaster) -> None:
    code = "import os\nprint('secret' in repr(os.environ), 'secret' in repr(globals()), 'tools' in sys.modules)"
    assert server.execute(code)["output"] == "False False True\n"


def test_help_shows_the_signature(server: XMaster) -> None:
    said = server.execute("help(web_parse)")["output"]
    assert "web_parse(link: 'str', user_prompt: 'str', llm: 'str' = 'gpt-4o')" in said


def test_the_files_of_the_original_are_used(server: XMaster, outside: Outside) -> None:
    server.execute(f"print(web_parse('{outside.url}/page', 'from the files?'))")
    prompt = outside.bodies["/llm/chat/completions"]["messages"][-1]["content"]
    assert prompt.startswith("Asked: from the files?\nPage: About bells")


# ---- the result stream


def test_the_stream_of_a_run_that_calls_a_tool(server: XMaster) -> None:
    answer = server.ask("POST", "/submit", {"code": "print(add(1)['tool_result'])", "session_id": "submitted"})
    assert answer.body == {"status": "success", "session_id": "submitted"}
    items = server.items("submitted")
    assert all(
        keys(item) == {"main_stream_type", "sub_stream_type", "content", "from_sandbox", "stream_state", "other_info"}
        for item in items
    )
    assert all(item["from_sandbox"] is True and item["sub_stream_type"] == "" for item in items)
    seen = [(item["main_stream_type"], item["stream_state"]) for item in items]
    assert seen == [
        ("tool_result", "start"),
        ("tool_result", "running"),
        ("tool_result", "running"),
        ("tool_result", "running"),
        ("code_result", "running"),
        ("tool_result", "end"),
    ]
    assert items[0]["other_info"] == {}
    assert items[1]["other_info"] == {"tool_name": "add"}
    assert items[2]["other_info"] == {"call_tool": "add", "call_args": {"a": 1, "b": 2}}
    assert items[3]["other_info"]["add"]["tool_result"] == 3
    assert items[3]["other_info"]["add"]["tool_elapsed_time"] > 0
    assert items[4]["content"] == "3\n"


def test_the_stream_of_a_run_that_fails_has_the_error(server: XMaster) -> None:
    server.ask("POST", "/submit", {"code": "print(1)\n1/0", "session_id": "submitted-error"})
    assert server.items("submitted-error")[-2]["content"].endswith("ZeroDivisionError: division by zero\n")


def test_runs_do_not_replay_each_other(server: XMaster) -> None:
    server.execute("print('executed')", session_id="submitted-twice")
    for text in ("one", "two"):
        server.ask("POST", "/submit", {"code": f"print('{text}')", "session_id": "submitted-twice"})
    assert [server.items("submitted-twice")[-2]["content"] for _ in range(2)] == ["one\n", "two\n"]


def test_a_submitted_run_changes_its_session(server: XMaster) -> None:
    server.ask("POST", "/submit", {"code": "later = 7", "session_id": "submitted-state"})
    server.items("submitted-state")
    assert server.execute("print(later)", session_id="submitted-state")["output"] == "7\n"


def test_a_submitted_run_without_a_session(server: XMaster) -> None:
    assert server.ask("POST", "/submit", {"code": "print(5)"}).body == {"status": "success", "session_id": "test_id"}
    assert server.items("test_id")[-2]["content"] == "5\n"


def test_an_unknown_session_is_404(server: XMaster) -> None:
    answer = server.ask("GET", "/get_mcp_result/unheard-of")
    assert (answer.status, answer.body) == (404, {"detail": "Session not found"})


def test_a_new_reader_continues_after_one_that_left(server: XMaster) -> None:
    code = "import time\nprint('kept')\ntime.sleep(2)"
    server.ask("POST", "/submit", {"code": code, "session_id": "left-alone"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as reader:
        reader.sendall(b"GET /get_mcp_result/left-alone HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heard = b""
        while b"start" not in heard:
            heard += reader.recv(65536)
    assert server.items("left-alone")[-2]["content"] == "kept\n"


def test_an_item_for_a_session_without_a_run_is_ignored(server: XMaster) -> None:
    server.execute("x = 1", session_id="no-run")
    put = server.ask("POST", "/put_item", {"session_id": "no-run", "item": {"n": 1}})
    assert (put.status, put.body) == (200, {"session_id": "no-run", "flag": False})
    assert server.ask("POST", "/put_item", {"session_id": "unknown", "item": {"n": 1}}).status == 500
    lines = server.ask("POST", "/stream_put_item", b'{"session_id": "unknown", "item": {"n": 1}}').body
    assert lines["errors"] == [{"line": 1, "error": "there is no session 'unknown'"}]


def test_items_from_outside_join_the_stream(server: XMaster) -> None:
    server.ask("POST", "/submit", {"code": "import time; time.sleep(2)", "session_id": "joined"})
    item = {"main_stream_type": "sub", "content": "from a tool"}
    put = server.ask("POST", "/put_item", {"session_id": "joined", "item": item})
    assert put.body == {"session_id": "joined", "flag": True}
    lines = b'{"session_id": "joined", "item": {"n": 1}}\nnot json\n{"session_id": "joined", "item": {"n": 2}}'
    many = server.ask("POST", "/stream_put_item", lines).body
    assert (many["status"], many["processed_items"], [each["line"] for each in many["errors"]]) == ("ok", 2, [2])
    items = server.items("joined")
    assert [each for each in items if "from_sandbox" not in each] == [item, {"n": 1}, {"n": 2}]


def test_an_item_for_an_unknown_session_is_500(server: XMaster) -> None:
    answer = server.ask("POST", "/put_item", {"session_id": "unknown", "item": {}})
    assert answer.status == 500
    assert list(answer.body) == ["detail"]


# ---- the tools themselves


def test_tools_are_listed(server: XMaster) -> None:
    listed = server.ask("GET", "/get_tool").body
    assert {"web_search", "web_parse", "add", "find_page"} <= {each["name"] for each in listed}
    assert all(set(each) == {"name", "description", "input_schema"} for each in listed)
    assert server.ask("GET", "/get_tool/web_agent").body == listed


@pytest.mark.parametrize(
    ("name", "arguments", "status", "body"),
    [
        pytest.param("add", {"a": 1}, 200, {"status": True, "result": 3}, id="ok"),
        pytest.param(
            "search", {"query": "x"}, 200, {"status": True, "result": {"organic": ["x", "x"]}}, id="text_that_is_json"
        ),
        pytest.param("nothing", {}, 404, {"detail": "Tool not found"}, id="unknown"),
        pytest.param(
            "fail", {}, 200, {"status": False, "result": "fail: Error executing tool fail: no luck today"}, id="fails"
        ),
        pytest.param(
            "add", {"a": "x"}, 200, {"status": False, "result": "add: a must be an integer, not a string"}, id="wrong"
        ),
    ],
)
def test_a_tool_is_called_over_http(server: XMaster, name: str, arguments: Any, status: int, body: Any) -> None:
    answer = server.ask("POST", f"/call_tool/{name}", arguments)
    assert (answer.status, answer.body) == (status, body)


# ---- the API proxy


@pytest.fixture(scope="session")
def alone(serve_here: Serve, config: Path) -> Any:
    arguments = ("proxy", "--port", "0", "--xmaster-config", str(config), "--set", "web.proxy_requests_per_second=50")
    with serve_here(*arguments, apis=("proxy",)) as running:
        yield running


@pytest.mark.parametrize("which", ["server", "alone"])
class TestProxy:
    def ask(self, request: pytest.FixtureRequest, which: str, path: str, body: Any) -> Any:
        running: XMaster = request.getfixturevalue(which)
        answer = running.ask("POST", path, body, api="proxy")
        assert answer.status == 200, answer
        return answer.body

    def test_search(self, request: pytest.FixtureRequest, which: str, outside: Outside) -> None:
        found = self.ask(request, which, "/search", {"query": f"{which} bells", "top_k": 3})
        assert [each["title"] for each in found["organic"]] == [f"{which} bells {each}" for each in range(3)]
        assert set(found) == {"organic"}

    def test_a_search_that_fails_is_empty(self, request: pytest.FixtureRequest, which: str, outside: Outside) -> None:
        outside.failing["/serper"] = 4
        assert self.ask(request, which, "/search", {"query": f"{which} nothing"}) == []
        assert outside.failing["/serper"] == 0

    def test_the_clients_own_key(self, request: pytest.FixtureRequest, which: str, outside: Outside) -> None:
        self.ask(request, which, "/search", {"query": f"{which} own", "serper_api_key": "of-the-client"})
        assert outside.headers["/serper"]["x-api-key"] == "of-the-client"

    def test_pages_and_papers(self, request: pytest.FixtureRequest, which: str, outside: Outside) -> None:
        assert self.ask(request, which, "/fetch_web", {"url": f"{outside.url}/page"}) == [True, PAGE]
        assert self.ask(request, which, "/fetch_web", {"url": "http://localhost/"}) == [
            False,
            "Failed to fetch web page",
        ]
        assert (
            self.ask(request, which, "/read_pdf", {"url": f"{outside.url}/paper.pdf"}).strip() == "Bells ring at dawn"
        )
        assert self.ask(request, which, "/read_pdf", {"url": f"{outside.url}/page"}) == "Failed to read the PDF"

    def test_a_bad_request(self, request: pytest.FixtureRequest, which: str) -> None:
        running: XMaster = request.getfixturevalue(which)
        answer = running.ask("POST", "/search", {}, api="proxy")
        assert answer.status == 422
        assert answer.body["detail"][0]["loc"] == ["body", "query"]


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, {"status": "ok"}),
        ("GET", "/nope", 404, {"detail": "Not Found"}),
        ("GET", "/search", 405, {"detail": "Method Not Allowed"}),
    ],
)
def test_the_proxy_alone_answers_as_its_original(
    alone: XMaster, method: str, path: str, status: int, body: Any
) -> None:
    answer = alone.ask(method, path, api="proxy")
    assert (answer.status, answer.body) == (status, body)


def test_too_many_requests_in_a_second(alone: XMaster) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = alone.ask("POST", "/search", {"query": "again"}, api="proxy")
        if answer.status == 429:
            assert answer.body == {"detail": "Too many requests. Limit is 50 requests per second."}
            assert answer.headers["retry-after"] == "1"
            return
    pytest.fail("it was never refused")


def test_the_proxy_is_on_the_main_port_only_on_request(serve: Serve) -> None:
    with serve("serve") as running:
        assert running.ask("POST", "/search", {"query": "x"}).status == 404


def test_the_configuration_is_checked(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "llm_call.json").write_text(json.dumps({"m": {}}))
    command = [sys.executable, "-m", "belljar", "serve", "--xmaster-config", str(tmp_path)]
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 125
    assert refused.stderr == "belljar: llm_call.json: 'm' has no url\n"


def test_a_listed_server_that_does_not_start_reports_why(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "server_list.json").write_text('["tools.py"]')
    command = [sys.executable, "-m", "belljar", "serve", "--xmaster-config", str(tmp_path)]
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 125
    assert "belljar: tool server 'xmaster-1' does not start: " in refused.stderr
    assert "\nModuleNotFoundError: No module named 'nowhere_to_be_found'\n" in refused.stderr
