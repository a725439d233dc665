"""Belljar inside a Python program: threads, event loops, forks, interrupts and forgetful owners."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.contract.errors import InvalidExecution, InvalidSettings, TooLarge
from belljar.contract.execution import MIB, Finished, Outcome, Output, Started
from belljar.settings import EnvironmentSettings, Settings, load

FOREVER = "import time\nwhile True: time.sleep(1)"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Real settings with an environment that is quickly built: the standard library alone."""
    base = tmp_path_factory.getbasetemp()
    return dataclasses.replace(
        load(environ={}),
        state_dir=base / "bare-state",
        runtime_dir=base / "bare-run",
        environments={"default": EnvironmentSettings(packages=(), warm_imports=())},
    )


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    """An open sandbox."""
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def is_idle(box: belljar.Sandbox) -> bool:
    return bool(box.facts()["running"] == 0)


# ---- what can be asked


def test_a_program_gets_what_it_is_given(box: belljar.Sandbox, tmp_path: Path) -> None:
    on_disk = tmp_path / "local.bin"
    on_disk.write_bytes(b"\xff\x00")
    code = """
        import os, pathlib, sys
        print(sys.stdin.read(), sys.argv[1:], os.environ["K"])
        print(pathlib.Path("a/text").read_text(), pathlib.Path("raw").read_bytes(), pathlib.Path("disk").read_bytes())
        pathlib.Path("out").mkdir()
        pathlib.Path("out/result.txt").write_text("made")
    """
    files: dict[str, str | bytes | Path] = {"a/text": "ü", "raw": b"\x01", "disk": on_disk}
    outcome = box.run(
        textwrap.dedent(code),
        stdin="in",
        args=["x", "y z"],
        env={"K": "V"},
        files=files,
        artifacts=["out/**"],
        timeout=20,
        memory_mb=256,
        limits={"processes": 20},
    )
    assert outcome.ok, outcome.stderr
    assert outcome.stdout == "in ['x', 'y z'] V\nü b'\\x01' b'\\xff\\x00'\n"
    assert outcome.artifacts == (belljar.File(path="out/result.txt", content=b"made"),)


def test_files_can_be_a_list_of_paths_and_files(box: belljar.Sandbox, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    files: list[belljar.File | Path] = [tmp_path / "one", belljar.File(path="two", content=b"2")]
    assert box.run("print(open('one').read() + open('two').read())", files=files).stdout == "12\n"


def test_limits_hold(box: belljar.Sandbox) -> None:
    assert box.run(FOREVER, timeout=0.1).status is belljar.Status.TIMED_OUT
    assert box.run("x = bytearray(200_000_000)", memory_mb=50).status is belljar.Status.OUT_OF_MEMORY
    assert box.run("x = bytearray(200_000_000)", limits=belljar.Limits(memory_bytes=50 * MIB)).status == "out_of_memory"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        pytest.param({"code": " "}, InvalidExecution, id="blank"),
        pytest.param({"code": "1", "timeout": -1}, InvalidExecution, id="negative"),
        pytest.param({"code": "1", "files": {"a": Path("/does/not/exist")}}, InvalidExecution, id="no_such_file"),
        pytest.param({"code": "1", "files": [Path("/")]}, InvalidExecution, id="a_directory"),
        pytest.param({"code": "1", "files": {"a": Path("/dev/zero")}}, TooLarge, id="an_endless_file"),
        pytest.param({"code": "1", "timeout_seconds": 1}, TypeError, id="unknown_keyword"),
    ],
)
def test_a_request_that_makes_no_sense_raises(
    box: belljar.Sandbox, asked: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        box.run(**asked)


def test_only_real_walls_can_be_given_up(settings: Settings) -> None:
    with pytest.raises(InvalidSettings, match="'everything'"):
        belljar.Sandbox(settings=settings, without_walls=["everything"])
    with belljar.Sandbox(settings=settings, without_walls=["landlock"]) as box:
        assert box.settings.jail.without_walls == ("landlock",)
        assert box.run("print(1)").ok


# ---- many at once


def test_many_threads_share_one_sandbox(box: belljar.Sandbox) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda number: box.run(f"print({number})"), range(64)))
    assert [outcome.stdout for outcome in outcomes] == [f"{number}\n" for number in range(64)]


def test_run_many_answers_in_order(box: belljar.Sandbox) -> None:
    programs: list[Any] = [f"print({number})" for number in range(40)]
    programs[0] = {"code": "import time; time.sleep(0.3); print(input())", "stdin": "slow"}
    assert [outcome.stdout for outcome in box.run_many(programs)] == ["slow\n", *(f"{n}\n" for n in range(1, 40))]


def test_run_many_takes_no_more_than_it_has_room_for(box: belljar.Sandbox) -> None:
    taken = itertools.count()
    endless = (f"print({number})" for number in taken)
    outcomes = box.run_many(endless, max_in_flight=2)
    assert [next(outcomes).stdout for _ in range(5)] == [f"{number}\n" for number in range(5)]
    outcomes.close()
    assert next(taken) < 100
    until(lambda: is_idle(box))


def test_run_many_keeps_to_max_in_flight(box: belljar.Sandbox) -> None:
    code = "import time; print(time.monotonic()); time.sleep(0.05); print(time.monotonic())"
    spans = [tuple(map(float, outcome.stdout.split())) for outcome in box.run_many([code] * 8, max_in_flight=2)]
    most = max(sum(start <= at <= end for start, end in spans) for at, _ in spans)
    assert most <= 2


def test_run_many_raises_or_returns_what_could_not_be_run(box: belljar.Sandbox) -> None:
    programs: list[Any] = ["print(1)", "print('\0')", {"code": "print(3)", "bogus": 1}, 4, None, "print(5)"]
    outcomes = box.run_many(programs)
    assert next(outcomes).ok
    with pytest.raises(InvalidExecution, match="NUL"):
        next(outcomes)
    answers = list(box.run_many(programs, return_exceptions=True))
    assert [isinstance(answer, Outcome) for answer in answers] == [True, False, False, False, False, True]
    assert "'bogus'" in str(answers[2])
    until(lambda: is_idle(box))


# ---- streams


def test_a_stream_tells_what_happens(box: belljar.Sandbox) -> None:
    started, output, finished = box.stream("print('hi')")
    assert isinstance(started, Started)
    assert output == Output(stream="stdout", text="hi\n")
    assert isinstance(finished, Finished)
    assert finished.outcome.id == started.id


def test_leaving_a_stream_early_ends_the_program(box: belljar.Sandbox) -> None:
    for event in box.stream(f"print('up', flush=True)\n{FOREVER}"):
        if isinstance(event, Output):
            break
    gc.collect()
    until(lambda: is_idle(box))


def test_closing_a_stream_waits_until_the_program_is_gone(box: belljar.Sandbox) -> None:
    with contextlib.closing(box.stream(f"print('up', flush=True)\n{FOREVER}")) as events:
        next(events)
        assert not is_idle(box)
    assert is_idle(box)


# ---- opening and closing


def test_a_sandbox_opens_when_first_used_and_closes_twice(settings: Settings) -> None:
    box = belljar.Sandbox(settings=settings)
    assert box.run("print(1)").ok
    box.close()
    box.close()
    for use in (
        lambda: box.run("print(1)"),
        lambda: box.stream("print(1)"),
        box.open,
        lambda: next(box.run_many(["1"])),
    ):
        with pytest.raises(belljar.CallerError, match="closed"):
            use()


def test_closing_an_unused_sandbox_is_harmless(settings: Settings) -> None:
    box = belljar.Sandbox(settings=settings)
    box.close()
    with pytest.raises(belljar.CallerError, match="closed"):
        box.run("print(1)")


def test_threads_that_run_while_it_closes_get_a_true_error(settings: Settings) -> None:
    box = belljar.Sandbox(settings=settings)
    box.open()
    with concurrent.futures.ThreadPoolExecutor(40) as threads:
        futures = [threads.submit(box.run, FOREVER) for _ in range(40)]
        until(lambda: box.facts()["running"] + box.facts()["queued"] == 40)
        box.close(grace_seconds=0.0)
    for future in futures:
        error = future.exception()
        assert isinstance(error, belljar.Overloaded) or future.result().status is belljar.Status.CANCELLED


def test_a_sandbox_that_cannot_open_says_why_and_leaves_no_thread(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = dataclasses.replace(settings, runtime_dir=tmp_path / "file")
    box = belljar.Sandbox(settings=broken)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(belljar.SandboxFault):
            box.run("print(1)")
    until(lambda: threading.active_count() <= before)
    box.close()


def test_a_dropped_sandbox_ends_itself(settings: Settings) -> None:
    box = belljar.Sandbox(settings=settings)
    assert box.run("print(1)").ok
    before = threading.active_count()
    gone = weakref.ref(box)
    del box
    gc.collect()
    assert gone() is None
    until(lambda: threading.active_count() < before)


# ---- what happens to the whole process

PRELUDE = """
import json, os, pathlib, signal, sys, threading, time
sys.path.insert(0, {sources!r})
import belljar
from belljar.jail.cgroups import find_hierarchies
from belljar.settings import EnvironmentSettings, JailSettings, Settings
settings = Settings(
    jail=JailSettings(cgroup_parent="belljar-embedded-test-{session}"),
    state_dir=pathlib.Path({state!r}),
    runtime_dir=pathlib.Path({runtime!r}),
    environments={{"default": EnvironmentSettings(packages=(), warm_imports=())}},
)
FOREVER = "import time\\nwhile True: time.sleep(1)"


def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""  # it has ended since


def family(pid):
    try:
        tasks = os.listdir(f"/proc/{{pid}}/task")
    except OSError:
        return []  # it has ended since
    children = [int(child) for task in tasks for child in read(f"/proc/{{pid}}/task/{{task}}/children").split()]
    return [*children, *(each for child in children for each in family(child))]


def tell_family():
    # The directories and not the members: between two programs a cell can be empty.
    parents = [f"{{each.path}}/{{settings.jail.cgroup_parent}}" for each in find_hierarchies()]
    cgroups = [path for path in parents if os.path.exists(path)]
    print(json.dumps([family(os.getpid()), cgroups, time.monotonic()]), flush=True)
"""


@pytest.fixture
def run_script(settings: Settings, sources: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run a script in a process of its own, with `belljar` and `settings` at hand."""
    prelude = PRELUDE.format(
        sources=str(sources), state=str(settings.state_dir), runtime=str(settings.runtime_dir), session=os.getpid()
    )

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("tell_family()", id="runs_out"),
        pytest.param("tell_family()\nsys.exit(0)", id="exits"),
        pytest.param(
            "threading.Thread(target=box.run, args=[FOREVER], daemon=True).start()\n"
            "while not box.facts()['running']: time.sleep(0.01)\n"
            "tell_family()",
            id="while_a_daemon_thread_runs_one",
        ),
        pytest.param("events = box.stream(FOREVER)\nnext(events)\ntell_family()", id="amid_a_stream"),
        pytest.param(
            "many = box.run_many(['1'] + [FOREVER] * 9)\nnext(many)\n"
            "while box.facts()['running'] < 2: time.sleep(0.01)\n"
            "tell_family()",
            id="amid_many",
        ),
        pytest.param(
            "box.loop = box\nbox.events = box.stream(FOREVER)\nnext(box.events)\ntell_family()", id="in_a_cycle"
        ),
    ],
)
def test_an_interpreter_that_exits_without_closing_leaves_nothing(run_script: Any, ending: str) -> None:
    answer = run_script(f"box = belljar.Sandbox(settings=settings)\nbox.run('print(1)')\n{ending}\n")
    ended = time.monotonic()
    assert (answer.returncode, answer.stderr) == (0, "")
    pids, cgroups, told = json.loads(answer.stdout)
    assert ended - told < 30
    assert pids, "the sandbox had processes"
    assert cgroups, "and cgroups"
    until(lambda: not any(map(is_alive, pids)))
    assert not [path for path in cgroups if Path(path).exists()]


def test_threads_that_outlive_the_main_one_can_still_use_it(run_script: Any) -> None:
    script = """
        box = belljar.Sandbox(settings=settings).open()
        def work():
            threading.main_thread().join()
            print(box.run("print('late')").stdout)
        threading.Thread(target=work).start()
    """
    answer = run_script(script)
    assert (answer.returncode, answer.stdout.strip(), answer.stderr) == (0, "late", "")


def test_a_killed_interpreter_leaves_nothing(run_script: Any) -> None:
    script = """
        box = belljar.Sandbox(settings=settings)
        next(box.stream("import os\\nos.fork()\\n" + FOREVER))
        tell_family()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    answer = run_script(script)
    pids, cgroups, _ = json.loads(answer.stdout)
    assert pids
    assert cgroups
    until(lambda: not any(map(is_alive, pids)))
    assert run_script("with belljar.Sandbox(settings=settings): pass").returncode == 0  # its cgroups are removed here
    assert not [path for path in cgroups if Path(path).exists()]


def test_a_forked_child_may_not_use_it_and_does_not_harm_it(run_script: Any) -> None:
    script = """
        box = belljar.Sandbox(settings=settings)
        assert box.run("print(1)").ok
        for ending in (lambda: os._exit(0), lambda: sys.exit(0)):
            child = os.fork()
            if not child:
                for use in (lambda: box.run("print(1)"), lambda: box.stream("print(1)"), box.open):
                    try:
                        use()
                    except belljar.CallerError as error:
                        print(error, flush=True)
                box.close()
                ending()
            assert os.waitpid(child, 0)[1] == 0
            assert box.run("print(2)").stdout == "2\\n"
        box.close()
    """
    answer = run_script(script)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count("belongs to the process that made it; make a new one after a fork") == 6


@pytest.mark.parametrize(
    "use",
    [
        pytest.param("box.run(FOREVER)", id="run"),
        pytest.param("list(box.stream(FOREVER))", id="stream"),
        pytest.param("list(box.run_many([FOREVER] * 3))", id="run_many"),
    ],
)
def test_an_interrupt_ends_the_program_and_the_sandbox_goes_on(run_script: Any, use: str) -> None:
    script = f"""
        with belljar.Sandbox(settings=settings) as box:
            def interrupt():
                while not box.facts()["running"]:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt).start()
            try:
                {use}
            except KeyboardInterrupt:
                print("interrupted", box.facts()["running"])
            print(box.run("print('next')").stdout)
    """
    answer = run_script(script)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.split() == ["interrupted", "0", "next"]


def test_names_are_found_without_importing_everything() -> None:
    for name in belljar.__all__:
        assert getattr(belljar, name) is not None
    assert set(belljar.__all__) <= set(dir(belljar))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = belljar.nonsense


# ---- on an event loop


def test_an_async_sandbox_runs_streams_and_answers_in_order(settings: Settings) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=settings) as box:
            outcomes = await asyncio.gather(*(box.run(f"print({number})") for number in range(20)))
            assert [outcome.stdout for outcome in outcomes] == [f"{number}\n" for number in range(20)]
            kinds = [type(event) async for event in box.stream("print('hi')")]
            assert kinds == [Started, Output, Finished]
            programs = ["import time; time.sleep(0.2); print(0)", *(f"print({number})" for number in range(1, 20))]
            many = [outcome.stdout async for outcome in box.run_many(programs, max_in_flight=3)]
            assert many == [f"{number}\n" for number in range(20)]
            answers = [answer async for answer in box.run_many(["", "print(1)"], return_exceptions=True)]
            assert isinstance(answers[0], InvalidExecution)
        with pytest.raises(belljar.CallerError, match="closed"):
            await box.run("print(1)")
        await box.close()

    asyncio.run(scene())


def test_leaving_an_async_run_many_early_ends_its_programs(settings: Settings) -> None:
    async def scene() -> None:
        async with belljar.AsyncSandbox(settings=settings) as box:
            async with contextlib.aclosing(box.run_many(["print(0)", *[FOREVER] * 20])) as outcomes:
                assert (await anext(outcomes)).ok
            assert box.facts()["running"] == 0

    asyncio.run(scene())


def test_first_uses_at_the_same_time_open_it_once(settings: Settings) -> None:
    async def scene() -> None:
        box = belljar.AsyncSandbox(settings=settings)
        outcomes = await asyncio.gather(*(box.run("print(1)") for _ in range(5)))
        assert all(outcome.ok for outcome in outcomes)
        await box.close()

    asyncio.run(scene())


def test_an_async_sandbox_stays_on_its_loop(settings: Settings) -> None:
    box = belljar.AsyncSandbox(settings=settings)

    async def use() -> None:
        with pytest.raises(belljar.CallerError, match="another event loop"):
            await box.run("print(1)")

    async def scene() -> None:
        await box.open()
        await asyncio.to_thread(asyncio.run, use())
        await box.close()

    asyncio.run(scene())


def test_an_async_sandbox_that_is_forgotten_warns(settings: Settings) -> None:
    async def scene() -> None:
        box = belljar.AsyncSandbox(settings=settings)
        await box.open()
        engine = box._engine
        assert engine is not None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del box
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning]
        await engine.close()

    asyncio.run(scene())


def test_a_sandbox_works_beneath_a_running_event_loop(box: belljar.Sandbox) -> None:
    async def scene() -> None:
        assert box.run("print(1)").ok

    asyncio.run(scene())
