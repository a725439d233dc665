"""The results of each tool, character by character where another system defines them."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from belljar.contract.errors import InvalidSettings
from belljar.frontends.mcp import tools
from belljar.frontends.mcp.tool_call import select

if TYPE_CHECKING:
    from tests.unit.frontends.mcp.conftest import Plug, Wire

NAMES = [
    "run_code",
    "open_session",
    "branch_session",
    "close_session",
    "upload_file",
    "download_file",
    "list_files",
    "list_languages",
    "python_code_execution",
    "run_python_code",
    "run_js_code",
    "run_javascript_code",
    "execute_python_code",
    "list_active_sessions",
    "terminate_session",
]
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"


def test_tools_are_listed_in_a_fixed_order(wire: Wire) -> None:
    listed = wire.ask("tools/list")["tools"]
    assert [tool["name"] for tool in listed] == NAMES
    assert wire.ask("tools/list")["tools"] == listed


def test_every_tool_is_described_for_a_model_and_its_user(wire: Wire) -> None:
    for tool in wire.ask("tools/list")["tools"]:
        assert len(tool["description"]) > 40
        assert tool["title"]
        assert tool["inputSchema"]["type"] == "object"
        assert "$ref" not in json.dumps(tool)
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool.get("outputSchema", {}))
        hints = tool["annotations"]
        assert set(hints) == {"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
        assert not (hints["readOnlyHint"] and hints["destructiveHint"])
        assert hints["openWorldHint"] is False, "there is no network"


def test_required_arguments_are_marked() -> None:
    required = {tool.name: tool.input_schema.get("required", []) for tool in tools.ALL}
    assert required["run_code"] == ["code"]
    assert required["run_python_code"] == ["code"]
    assert required["upload_file"] == ["session_id", "path", "content"]
    assert required["list_languages"] == []


def test_tools_are_selected_by_name_or_group() -> None:
    assert [tool.name for tool in select(tools.ALL, ("safe-execute", "run_code"))] == [
        "run_code",
        "python_code_execution",
    ]
    assert [tool.name for tool in select(tools.ALL, ("kernels",))] == NAMES[-3:]
    with pytest.raises(InvalidSettings, match="unknown MCP tool 'nope'"):
        select(tools.ALL, ("nope",))


# ---- run_code


def test_the_result_matches_its_schema(wire: Wire) -> None:
    schemas = {tool["name"]: tool.get("outputSchema") for tool in wire.ask("tools/list")["tools"]}
    for code in ("print(1)", "1/0", "import sys; sys.exit(3)", FIGURE, "import os; os.abort()"):
        result = wire.call("run_code", code=code)
        jsonschema.validate(result["structuredContent"], schemas["run_code"])
    jsonschema.validate(wire.call("list_languages")["structuredContent"], schemas["list_languages"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param({"code": "print('a\\nb')"}, "a\nb", id="output_alone"),
        pytest.param({"code": "print(input()[::-1])", "stdin": "abc"}, "cba", id="standard_input"),
        pytest.param(
            {"code": "print(open('d/a.txt').read())", "files": [{"path": "d/a.txt", "content": "ä"}]}, "ä", id="file"
        ),
        pytest.param(
            {
                "code": "print(open('a', 'rb').read())",
                "files": [{"path": "a", "content": "/wA=", "encoding": "base64"}],
            },
            r"b'\xff\x00'",
            id="binary_file",
        ),
        pytest.param({"code": "print(1)", "timeout": "5"}, "1", id="number_as_text"),
    ],
)
def test_a_program_gets_its_input_and_files(wire: Wire, arguments: dict[str, Any], text: str) -> None:
    result = wire.call("run_code", **arguments)
    assert result["content"] == [{"type": "text", "text": text}]
    assert result["isError"] is False
    assert result["structuredContent"]["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        pytest.param({"code": "1/0"}, "failed", "ZeroDivisionError: division by zero", id="exception"),
        pytest.param({"code": "print(7); raise SystemExit(3)"}, "failed", "exit code 3", id="exit_code"),
        pytest.param({"code": "while True: pass", "timeout": 0.5}, "timed_out", "ran out of time", id="too_long"),
        pytest.param({"code": "x = 'x' * (1 << 30)"}, "out_of_memory", "more memory", id="too_much_memory"),
        pytest.param({"code": "x = 1"}, "ok", "printed nothing", id="nothing_printed"),
    ],
)
def test_a_failed_program_is_a_result_with_advice(
    wire: Wire, arguments: dict[str, Any], status: str, words: str
) -> None:
    result = wire.call("run_code", **arguments)
    assert result["isError"] is False
    assert result["structuredContent"]["status"] == status
    assert words in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({}, "missing required field 'code'", id="no_code"),
        pytest.param({"code": 7}, "expected 'str'", id="code_is_not_text"),
        pytest.param({"code": "   "}, "code is blank", id="blank_code"),
        pytest.param({"code": "1", "langauge": "python"}, "unknown field 'langauge'", id="unknown_argument"),
        pytest.param({"code": "1", "language": "klingon"}, "language 'klingon'", id="unknown_language"),
        pytest.param({"code": "1", "timeout": -1}, "> 0", id="negative_timeout"),
        pytest.param({"code": "1", "timeout": 1e9}, "at most", id="timeout_over_the_ceiling"),
        pytest.param({"code": "1", "files": [{"path": "../a", "content": ""}]}, "..", id="path_outside"),
        pytest.param(
            {"code": "1", "files": [{"path": "a", "content": "?", "encoding": "base64"}]}, "base64", id="not_base64"
        ),
        pytest.param({"code": "1", "session_id": "s_none"}, "does not exist", id="unknown_session"),
    ],
)
def test_invalid_arguments_are_reported_to_the_model(wire: Wire, arguments: dict[str, Any], words: str) -> None:
    result = wire.call("run_code", **arguments)
    assert result["isError"] is True
    assert words in result["content"][0]["text"]


def test_a_picture_arrives_complete(wire: Wire) -> None:
    result = wire.call("run_code", code=FIGURE)
    images = [block for block in result["content"] if block["type"] == "image"]
    assert [image["mimeType"] for image in images] == ["image/png"]
    assert result["structuredContent"]["images"] == 1
    png = base64.b64decode(images[0]["data"], validate=True)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 100
    assert height > 100
    assert png.endswith(b"IEND\xaeB`\x82")


def test_a_picture_without_output_is_the_only_content(wire: Wire) -> None:
    result = wire.call("run_code", code="import matplotlib.pyplot as plt; plt.plot([1])")
    assert [block["type"] for block in result["content"]] == ["image"]


def test_artifacts_are_returned_as_resources(wire: Wire) -> None:
    code = "open('a.csv', 'w').write('x,y'); open('b.bin', 'wb').write(bytes([255, 0])); open('c', 'w').write('no')"
    result = wire.call("run_code", code=code, artifacts=["*.csv", "*.bin"])
    files = [block["resource"] for block in result["content"] if block["type"] == "resource"]
    assert [file["uri"].rpartition("/")[2] for file in files] == ["a.csv", "b.bin"]
    assert (files[0]["mimeType"], files[0]["text"]) == ("text/csv", "x,y")
    assert base64.b64decode(files[1]["blob"]) == b"\xff\x00"
    listed = result["structuredContent"]["artifacts"]
    assert [(each["path"], each["bytes"]) for each in listed] == [("a.csv", 3), ("b.bin", 2)]


def test_artifacts_that_are_too_large_are_named_but_left_out(wire: Wire) -> None:
    code = "open('small', 'wb').write(b'x'); open('large', 'wb').write(bytes(9 << 20))"
    result = wire.call("run_code", code=code, artifacts=["*"])
    listed = {each["path"]: each["uri"] for each in result["structuredContent"]["artifacts"]}
    assert listed["large"] is None
    assert listed["small"]
    assert "too large" in result["content"][0]["text"]


# ---- code-sandbox-mcp


def _failure(stderr: str) -> str:
    return json.dumps({"exit_code": 1, "stderr": stderr, "stdout": ""}, indent=2)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param("print(6 * 7)", "42", id="output"),
        pytest.param("print('  a  \\n')", "a", id="output_is_stripped"),
        pytest.param("import sys; print('a'); print('b', file=sys.stderr)", "a", id="stderr_is_dropped"),
        pytest.param("x = 1", _failure("No output, forgot print()?"), id="nothing_printed"),
        pytest.param("import sys; print('a'); sys.exit('gone')", _failure("gone"), id="failed"),
    ],
)
def test_run_python_code_answers_as_the_original(wire: Wire, code: str, text: str) -> None:
    result = wire.call("run_python_code", code=code)
    assert result == {"content": [{"type": "text", "text": text}], "isError": False}


def test_run_python_code_reports_an_exception(wire: Wire) -> None:
    answer = json.loads(wire.call("run_python_code", code="1/0")["content"][0]["text"])
    assert list(answer) == ["exit_code", "stderr", "stdout"]
    assert answer["stderr"].startswith("Traceback")
    assert answer["stderr"].endswith("ZeroDivisionError: division by zero")


def test_run_python_code_without_code_is_an_error(wire: Wire) -> None:
    assert wire.call("run_python_code")["isError"] is True


@pytest.mark.parametrize("limit", ["default_limits.memory_bytes=20000000"])
def test_run_python_code_reports_an_error_at_every_limit(plug: Plug, limit: str) -> None:
    with plug("--set", limit) as wire:
        wire.greet()
        answer = json.loads(wire.call("run_python_code", code="x = 'x' * (1 << 28)")["content"][0]["text"])
        assert "error" in answer["stderr"].lower()


JAVASCRIPT = ("run_js_code", "run_javascript_code")


@pytest.mark.parametrize("tool", JAVASCRIPT)
def test_javascript_is_run_under_both_names(wire: Wire, tool: str) -> None:
    result = wire.call(tool, code="console.log([1, 2, 3].map(x => x * 2).join())")
    assert result == {"content": [{"type": "text", "text": "2,4,6"}], "isError": False}
    answer = json.loads(wire.call(tool, code="let x = 1")["content"][0]["text"])
    assert answer == {"exit_code": 1, "stderr": "No output, forgot console.logs?", "stdout": ""}
    assert "ReferenceError" in wire.call(tool, code="console.log(nope)")["content"][0]["text"]


# ---- safe_execute


def test_python_code_execution_returns_the_output(wire: Wire) -> None:
    result = wire.call("python_code_execution", code="import math\nprint(2 ** 10, math.floor(2.5))")
    assert result["isError"] is False
    assert [block["type"] for block in result["content"]] == ["text"]
    assert result["content"][0]["text"].strip() == "1024 2"


@pytest.mark.parametrize(
    ("code", "last"),
    [
        pytest.param("1/0", "Error: ZeroDivisionError: division by zero", id="exception"),
        pytest.param("import os", "Error: InterpreterError:", id="import_that_is_not_allowed"),
        pytest.param("print(open('/etc/passwd').read())", "Error: ", id="file"),
        pytest.param("x = ' ' * (200 << 20)", "Error: MemoryError:", id="too_much_memory"),
        pytest.param("  ", "Error: ", id="blank"),
    ],
)
def test_python_code_execution_reports_errors_in_its_block(wire: Wire, code: str, last: str) -> None:
    text = wire.call("python_code_execution", code=code)["content"][0]["text"]
    assert "RESOURCE LIMIT EXCEEDED" in text
    assert text.splitlines()[-1].startswith(last)


# ---- resources and the prompt


def test_environments_can_be_read(wire: Wire) -> None:
    (listed,) = wire.ask("resources/list")["resources"]
    assert (listed["uri"], listed["name"]) == ("sandbox://environments", "environment_details")
    assert listed["mimeType"] == "text/plain"
    (content,) = wire.ask("resources/read", {"uri": "sandbox://environments"})["contents"]
    answer = json.loads(content["text"])
    assert "numpy" in answer["python"]["installed_libraries"]
    assert content["text"] == json.dumps(answer, indent=2)


def test_an_unknown_resource_is_an_error_of_the_protocol(wire: Wire) -> None:
    answer = wire.finish(wire.begin("resources/read", {"uri": "sandbox://nothing"}))
    assert answer["error"]["code"] == -32002


def test_the_prompt_says_to_print(wire: Wire) -> None:
    (listed,) = wire.ask("prompts/list")["prompts"]
    got = wire.ask("prompts/get", {"name": listed["name"], "arguments": {"task": "count the primes below 100"}})
    text = got["messages"][0]["content"]["text"]
    assert "print(" in text
    assert "count the primes below 100" in text


def test_an_unknown_prompt_is_an_error_of_the_protocol(wire: Wire) -> None:
    assert wire.finish(wire.begin("prompts/get", {"name": "nope"}))["error"]["code"] == -32602
