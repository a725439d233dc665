"""Programs that call functions of the host."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Annotated, Any

import pytest

import belljar
from belljar.contract.execution import Finished, ToolAnswered, ToolCalled


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def search(query: Annotated[str, "what to look for"], top_k: int = 10) -> dict[str, Any]:
    """Find pages."""
    return {"organic": [{"title": f"{query} {number}"} for number in range(top_k)]}


async def shout(text: str) -> str:
    """Make it loud."""
    await asyncio.sleep(0)
    return text.upper()


def echo(value: Any) -> Any:
    return value


def fail() -> None:
    raise ValueError("no luck today")


def answer_of(outcome: belljar.Outcome) -> str:
    assert outcome.status == "ok", outcome.stderr
    return outcome.stdout


def test_a_function_of_the_host_is_called_with_its_defaults(tool_box: belljar.Sandbox) -> None:
    code = "from tools import add, shout\nprint(add(1), add(1, 5), add(b=1, a=1), shout('hi'))"
    outcome = tool_box.run(code, tools=[add, shout])
    assert answer_of(outcome) == "3 6 2 HI\n"
    assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("add", True)] * 3 + [("shout", True)]


@pytest.mark.parametrize(
    "line", ["from tools import *", "import tools; search = tools.search", "from tools import search"]
)
def test_every_form_of_import_works(tool_box: belljar.Sandbox, line: str) -> None:
    code = f"{line}\nprint(search('bell', top_k=1)['organic'][0]['title'])"
    assert answer_of(tool_box.run(code, tools=[search])) == "bell 0\n"


def test_help_shows_signature_and_docstring(tool_box: belljar.Sandbox) -> None:
    printed = answer_of(tool_box.run("import tools\nhelp(tools.search)", tools=[search]))
    assert "search(query: 'str', top_k: 'int' = 10)" in printed
    assert "Find pages." in printed
    assert "query: what to look for" in printed


def test_the_signature_can_be_inspected(tool_box: belljar.Sandbox) -> None:
    code = "import inspect, tools\nprint(list(inspect.signature(tools.search).parameters), tools.search.__module__)"
    assert answer_of(tool_box.run(code, tools=[search])) == "['query', 'top_k'] tools\n"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("'x' * 900_000", id="long_text"),
        pytest.param("{'deep': [[[{'a': None, 'b': 1.5, 'c': True}]]]}", id="nested"),
        pytest.param("'ünï\\N{SNOWMAN}\\U0001F600\\0'", id="any_character"),
        pytest.param("[]", id="empty"),
        pytest.param("2**53", id="large_number"),
    ],
)
def test_json_values_arrive_and_return_unchanged(tool_box: belljar.Sandbox, value: str) -> None:
    code = f"import tools\nvalue = {value}\nprint(tools.echo(value) == value)"
    assert answer_of(tool_box.run(code, tools=[echo])) == "True\n"


def test_numpy_numbers_are_accepted(tool_box: belljar.Sandbox) -> None:
    code = "import numpy, tools\nprint(tools.add(numpy.int64(4), 1), tools.echo(numpy.arange(3)))"
    assert answer_of(tool_box.run(code, tools=[add, echo])) == "5 [0, 1, 2]\n"


def test_twenty_threads_call_concurrently(tool_box: belljar.Sandbox) -> None:
    code = (
        "import tools\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(20) as pool:\n    got = list(pool.map(tools.add, range(1000)))\n"
        "print(got == [each + 2 for each in range(1000)])"
    )
    outcome = tool_box.run(code, tools=[add], timeout=100)
    assert answer_of(outcome) == "True\n"
    assert len(outcome.tool_calls) == 1000


def test_calls_run_concurrently(tool_box: belljar.Sandbox) -> None:
    meeting = threading.Barrier(8, timeout=20)

    def meet() -> bool:
        meeting.wait()
        return True

    code = (
        "import tools, threading\n"
        "threads = [threading.Thread(target=tools.meet) for _ in range(8)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\nprint('met')"
    )
    assert answer_of(tool_box.run(code, tools=[meet])) == "met\n"


def test_awaitable_forms(tool_box: belljar.Sandbox) -> None:
    code = (
        "import asyncio, threading, tools.aio\nfrom tools.aio import add, fail\n"
        "async def main():\n"
        "    print(sum(await asyncio.gather(*[add(each) for each in range(100)])))\n"
        "    try:\n        await fail()\n    except tools.ToolError as error:\n        print(error)\n"
        "asyncio.run(main())\n"
    )
    outcome = tool_box.run(code, tools=[add, fail])
    assert answer_of(outcome) == f"{sum(range(100)) + 200}\nfail: ValueError: no luck today\n"


def test_child_processes_have_their_own_connections(tool_box: belljar.Sandbox) -> None:
    code = (
        "import multiprocessing, os, tools\n"
        "tools.add(0)\n"
        "def work(start):\n    return [tools.add(start + each) for each in range(50)]\n"
        "with multiprocessing.Pool(4) as pool:\n    got = pool.map(work, range(0, 400, 50))\n"
        "print(sum(got, []) == list(range(2, 402)), tools.add(1))\n"
    )
    assert answer_of(tool_box.run(code, tools=[add])) == "True 3\n"


def test_a_fork_while_other_threads_call(tool_box: belljar.Sandbox) -> None:
    code = (
        "import os, threading, tools\n"
        "wrong = []\n"
        "def loop(start):\n"
        "    for each in range(100):\n"
        "        if tools.add(start + each) != start + each + 2: wrong.append(each)\n"
        "threads = [threading.Thread(target=loop, args=(1000 * each,)) for each in range(4)]\n"
        "[each.start() for each in threads]\n"
        "for _ in range(5):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        os._exit(0 if tools.add(5) == 7 else 1)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "[each.join() for each in threads]\nprint(wrong)\n"
    )
    assert answer_of(tool_box.run(code, tools=[add])) == "[]\n"


def test_a_failure_is_an_exception_with_its_message(tool_box: belljar.Sandbox) -> None:
    outcome = tool_box.run("import tools\ntools.fail()", tools=[fail])
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.type == "ToolError"
    assert outcome.error.message == "fail: ValueError: no luck today"
    assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("fail", False)]


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        pytest.param("add('x')", "ToolError: add: a must be an integer, not a string", id="wrong_type"),
        pytest.param("add(True)", "ToolError: add: a must be an integer, not a boolean", id="boolean_as_number"),
        pytest.param("add()", "TypeError: add() missing 1 required positional argument: 'a'", id="missing"),
        pytest.param("add(1, 2, 3)", "TypeError: add() takes from 1 to 2 positional arguments", id="too_many"),
        pytest.param("add(1, c=3)", "TypeError: add() got an unexpected keyword argument 'c'", id="unknown"),
        pytest.param("add(object())", "ToolError: add: an argument cannot be sent", id="not_json"),
        pytest.param("add(float('nan'))", "ToolError: add: an argument cannot be sent", id="nan"),
        pytest.param("echo('x' * 2_000_000)", "over the 1000000 allowed", id="too_large"),
        pytest.param("search", "unknown tool 'search'; this program has: add, echo", id="not_given"),
    ],
)
def test_an_invalid_call_is_a_clear_error(tool_box: belljar.Sandbox, call: str, printed: str) -> None:
    code = (
        "import tools\nfrom tools import *\n"
        f"try:\n    tools.{call}\nexcept Exception as error:\n    print(type(error).__name__ + ':', error)\n"
        "print(tools.add(1))"
    )
    lines = answer_of(tool_box.run(code, tools=[add, echo])).splitlines()
    assert printed in lines[0]
    assert lines[1] == "3"


def test_waiting_for_a_tool_is_wall_time_and_not_cpu_time(tool_box: belljar.Sandbox) -> None:
    gate = threading.Event()

    def wait() -> None:
        gate.wait(1.0)

    outcome = tool_box.run("import tools\ntools.wait()", tools=[wait])
    assert outcome.status == "ok"
    assert outcome.usage.wall_seconds > 0.9
    assert outcome.usage.cpu_seconds < 0.5


def test_a_program_that_ends_does_not_wait_for_its_calls(tool_box: belljar.Sandbox) -> None:
    gate = threading.Event()
    code = (
        "import threading, tools\nthreading.Thread(target=tools.hang, daemon=True).start()\n"
        "tools.echo(1)\nprint('over')"
    )

    def hang() -> None:
        gate.wait(20)

    try:
        outcome = tool_box.run(code, tools=[hang, echo])
    finally:
        gate.set()
    assert answer_of(outcome) == "over\n"
    assert outcome.usage.wall_seconds < 10


def test_a_timeout_ends_a_program_that_waits_for_a_tool(tool_box: belljar.Sandbox) -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(20)

    try:
        outcome = tool_box.run("import tools\ntools.hang()", tools=[hang], timeout=0.5)
    finally:
        gate.set()
    assert outcome.status == "timed_out"
    assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("hang", False)]


def test_a_tool_that_hangs_fails_in_time(bounded_box: Any) -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(20)

    code = "import tools\ntry:\n    tools.hang()\nexcept tools.ToolError as error:\n    print(error)"
    try:
        assert answer_of(bounded_box(call_seconds=0.3).run(code, tools=[hang])) == "hang: no answer within 0.3 s\n"
    finally:
        gate.set()


def test_a_result_that_is_too_large_is_an_error(tool_box: belljar.Sandbox) -> None:
    def flood() -> str:
        return "x" * 10_000_000

    code = "import tools\ntry:\n    tools.flood()\nexcept tools.ToolError as error:\n    print(error)"
    printed = answer_of(tool_box.run(code, tools=[flood]))
    assert printed == "flood: its answer has 10,000,013 bytes, over the 4,000,000 allowed\n"


def test_a_result_that_is_not_json_is_an_error(tool_box: belljar.Sandbox) -> None:
    def garbage() -> Any:
        return object()

    code = "import tools\ntry:\n    tools.garbage()\nexcept tools.ToolError as error:\n    print(error)"
    assert "garbage: its answer cannot be encoded as JSON" in answer_of(tool_box.run(code, tools=[garbage]))


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def raising(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("work", "printed"),
    [
        pytest.param(lambda: "a\ud800b", "its answer cannot be encoded as JSON: 'utf-8' codec", id="half_a_character"),
        pytest.param(
            lambda: {"deep": [{"\udcff": 1}]}, "its answer cannot be encoded as JSON: 'utf-8' codec", id="in_a_name"
        ),
        pytest.param(
            lambda: {(1, 2): 3}, "its answer cannot be encoded as JSON: Only dicts with str-like", id="key_of_two"
        ),
        pytest.param(lambda: 10**5000, "its answer cannot be encoded as JSON: Exceeds the limit", id="number_too_long"),
        pytest.param(
            lambda: nested(100_000), "its answer cannot be encoded as JSON: maximum recursion", id="nested_too_deeply"
        ),
        pytest.param(
            lambda: [nested(each) for each in range(900, 1000)], "its answer cannot be encoded", id="nested_deeply"
        ),
        pytest.param(lambda: raising(ValueError("bad \udcff")), "ValueError: bad \\udcff", id="half_in_an_error"),
        pytest.param(lambda: raising(Speechless()), "the host could not answer", id="error_without_message"),
        pytest.param(lambda: raising(asyncio.CancelledError()), "it raised CancelledError", id="cancelled_within"),
        pytest.param(lambda: raising(SystemExit(3)), "it raised SystemExit", id="exit"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_every_failure_of_a_tool_is_answered(
    tool_box: belljar.Sandbox, work: Any, printed: str, *, is_async: bool
) -> None:
    def odd() -> Any:
        return work()

    async def odd_too() -> Any:
        return work()

    tool = odd_too if is_async else odd
    code = (
        f"import tools\ntry:\n    tools.{tool.__name__}()\nexcept tools.ToolError as error:\n    print(error)\n"
        "print(tools.add(1))"
    )
    outcome = tool_box.run(code, tools=[tool, add], timeout=30)
    lines = answer_of(outcome).splitlines()
    assert lines[0].startswith(f"{tool.__name__}: {printed}")
    assert lines[1] == "3"
    assert [call.ok for call in outcome.tool_calls if call.tool == "add"] == [True]
    assert not any(call.ok for call in outcome.tool_calls if call.tool != "add")


def test_an_unsendable_result_is_streamed_as_a_failure(tool_box: belljar.Sandbox) -> None:
    def half() -> str:
        return "a\ud800b"

    code = "import tools\ntry:\n    tools.half()\nexcept tools.ToolError: pass"
    (answered,) = (each for each in tool_box.stream(code, tools=[half], timeout=30) if isinstance(each, ToolAnswered))
    assert not answered.call.ok
    assert answered.result.startswith("half: its answer cannot be encoded as JSON")
    assert answered.result.isascii()


def test_the_number_of_calls_is_limited(bounded_box: Any) -> None:
    code = (
        "import tools\ncount = 0\ntry:\n    while True:\n        tools.add(1)\n        count += 1\n"
        "except tools.ToolError as error:\n    print(count, error)"
    )
    outcome = bounded_box(calls_max=7).run(code, tools=[add])
    assert answer_of(outcome) == "7 add: this program has made all the 7 calls it may make\n"


def test_calls_past_the_rate_wait(bounded_box: Any) -> None:
    code = "import time, tools\nbegan = time.time()\nfor _ in range(80): tools.add(1)\nprint(time.time() - began > 0.5)"
    assert answer_of(bounded_box(calls_per_second=40.0).run(code, tools=[add])) == "True\n"


def test_the_time_of_calls_is_limited(bounded_box: Any) -> None:
    gate = threading.Event()

    def wait() -> None:
        gate.wait(0.3)

    code = (
        "import tools\ntry:\n    for _ in range(50): tools.wait()\nexcept tools.ToolError as error:\n    print(error)"
    )
    printed = answer_of(bounded_box(total_seconds=0.5).run(code, tools=[wait]))
    assert printed == "wait: this program has used up the 0.5 s that its calls may take\n"


def test_calls_are_streamed(tool_box: belljar.Sandbox) -> None:
    code = "import tools\ntools.add(1)\ntry:\n    tools.fail()\nexcept tools.ToolError: pass"
    events = [each for each in tool_box.stream(code, tools=[add, fail]) if isinstance(each, ToolCalled | ToolAnswered)]
    assert [type(each) for each in events] == [ToolCalled, ToolAnswered] * 2
    assert isinstance(events[0], ToolCalled)
    assert (events[0].number, events[0].tool, events[0].arguments) == (1, "add", {"a": 1, "b": 2})
    assert isinstance(events[1], ToolAnswered)
    assert events[1].result == 3
    assert isinstance(events[3], ToolAnswered)
    assert (events[3].call.ok, events[3].result) == (False, "fail: ValueError: no luck today")


def test_calls_wait_for_a_slow_reader(tool_box: belljar.Sandbox) -> None:
    made: list[int] = []

    def measure(text: str) -> str:
        made.append(len(text))
        return text

    code = "import tools\nfor _ in range(200): tools.measure('x' * 200_000)\nprint('done')"
    events = tool_box.stream(code, tools=[measure], timeout=60)
    next(events)
    for _ in range(20):  # while nothing is read
        tool_box.run("pass")
    assert len(made) < 50
    *_, last = events
    assert isinstance(last, Finished)
    assert answer_of(last.outcome) == "done\n"
    assert len(made) == 200


def test_a_lone_surrogate_is_refused_before_it_is_sent(tool_box: belljar.Sandbox) -> None:
    code = (
        "import tools\ntry:\n    tools.echo('\\ud83d')\nexcept tools.ToolError as error:\n    print(error)\n"
        "print(tools.echo('\\U0001f514'), tools.echo('\\\\ud83d'))"
    )

    def echo(text: str) -> str:
        return text

    printed = answer_of(tool_box.run(code, tools=[echo])).splitlines()
    assert printed[0].startswith("echo: an argument cannot be sent: ")
    assert printed[1] == "\U0001f514 \\ud83d"


def test_a_program_without_tools_has_no_such_module(tool_box: belljar.Sandbox) -> None:
    outcome = tool_box.run("import tools")
    assert outcome.error is not None
    assert outcome.error.type == "ModuleNotFoundError"


def test_a_module_of_the_program_wins(tool_box: belljar.Sandbox) -> None:
    outcome = tool_box.run("import tools\nprint(tools.mine)", tools=[add], files={"tools.py": "mine = 1"})
    assert answer_of(outcome) == "1\n"


def test_functions_of_the_same_name_in_two_runs_are_separate(tool_box: belljar.Sandbox) -> None:
    def make(value: int) -> Any:
        def mine() -> int:
            return value

        return mine

    programs = [{"code": "import tools\nprint(tools.mine())", "tools": [make(each)]} for each in range(20)]
    assert [answer_of(outcome) for outcome in tool_box.run_many(programs)] == [f"{each}\n" for each in range(20)]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        pytest.param(["nothing"], "unknown tool 'nothing'", id="unknown_name"),
        pytest.param([add, add], "two of them are named 'add'", id="twice"),
        pytest.param([lambda: 1], "give a function made with 'def'", id="without_a_name"),
        pytest.param([print], "by position only", id="unnamed_arguments"),
        pytest.param("add", "tools must be a list", id="text"),
    ],
)
def test_invalid_tools_are_refused(tool_box: belljar.Sandbox, given: Any, printed: str) -> None:
    with pytest.raises(belljar.CallerError, match=printed):
        tool_box.run("print(1)", tools=given)


def test_descriptors_are_where_a_program_expects_them(tool_box: belljar.Sandbox) -> None:
    code = "import os, tools\nprint(os.open('/dev/null', 0)); tools.add(1)"
    assert answer_of(tool_box.run(code, tools=[add])) == "3\n"


def test_nothing_is_left_behind(settings: belljar.Settings, host: Any) -> None:
    with belljar.Sandbox(settings=dataclasses.replace(settings)) as box:
        begin = "import tools\nprint(tools.add(1), flush=True)"
        assert answer_of(box.run(begin, tools=[add])) == "3\n"
        before = host.settled_leftovers().counts()
        for end, status in (("", "ok"), ("import os; os.kill(os.getpid(), 9)", "crashed")):
            for _ in range(5):
                outcome = box.run(f"{begin}\n{end}", tools=[add])
                assert (outcome.status, outcome.stdout) == (status, "3\n"), outcome.stderr
                assert [(call.tool, call.ok) for call in outcome.tool_calls] == [("add", True)]
        host.wait_until(lambda: host.leftovers().counts().descriptors <= before.descriptors, "descriptors are closed")
