"""Programs in compiled languages: their steps, the compile cache, and reported errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import belljar
from belljar.assembly import build_engine
from belljar.contract.errors import ToolchainMissing
from belljar.contract.execution import Finished, Outcome, Output, Started, Status
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.languages import installed_toolchains, load_all
from belljar.settings import Settings

OwnSettings = Callable[..., Settings]

ECHO = '#include <stdio.h>\nint main(void) { int n; while (scanf("%d", &n) == 1) printf("%d\\n", n * 2); return 0; }'


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Engine]:
    engine = build_engine(settings)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close(grace_seconds=0.0)


def test_a_program_is_compiled_once(bare_box: belljar.Sandbox) -> None:
    first = bare_box.run(ECHO, language="c", stdin="1 2")
    second = bare_box.run(ECHO, language="gcc", stdin="21")
    assert (first.stdout, second.stdout) == ("2\n4\n", "42\n")
    assert first.compilation is not None
    assert second.compilation is not None
    assert (first.compilation.was_cached, second.compilation.was_cached) == (False, True)
    assert first.as_json()["compile"]["status"] == "ok"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"code": ECHO + "\n"}, id="other_source"),
        pytest.param({"files": {"unused.h": "int x;"}}, id="other_files"),
    ],
)
def test_another_program_is_compiled_again(bare_box: belljar.Sandbox, changed: dict[str, Any]) -> None:
    bare_box.run(ECHO, language="c")
    outcome = bare_box.run(**{"code": ECHO, "language": "c", **changed})
    assert outcome.compilation is not None
    assert not outcome.compilation.was_cached


def test_callers_do_not_share_compiled_programs(own_settings: OwnSettings) -> None:
    async def cached(shared: bool) -> list[bool]:
        own = own_settings(compile_cache_shared=shared)
        async with opened(own) as engine:
            outcomes = [
                await engine.run(admit(own, ExecutionRequest(ECHO, language="c"), caller))
                for caller in ("ann", "bob", "ann")
            ]
        return [outcome.compilation is not None and outcome.compilation.was_cached for outcome in outcomes]

    assert asyncio.run(cached(False)) == [False, False, True]
    assert asyncio.run(cached(True)) == [False, True, True]


def test_concurrent_equal_programs_share_one_compile_step(own_settings: OwnSettings) -> None:
    own = own_settings()

    async def run_all() -> list[Outcome]:
        async with opened(own) as engine:
            return await asyncio.gather(
                *(engine.run(admit(own, ExecutionRequest(ECHO, language="c", stdin=str(n)))) for n in range(8))
            )

    outcomes = asyncio.run(run_all())
    assert [outcome.stdout for outcome in outcomes] == [f"{n * 2}\n" for n in range(8)]
    assert [outcome.compilation is not None and outcome.compilation.was_cached for outcome in outcomes].count(
        False
    ) == 1


def test_a_shared_compile_step_outlives_its_first_caller(own_settings: OwnSettings) -> None:
    own = own_settings()
    functions = "".join(f"int f{n}(int x) {{ return x * {n} + x / (x + {n}); }}\n" for n in range(3000))
    slow = f'#include <stdio.h>\n{functions}int main(void) {{ puts("done"); return 0; }}'

    async def run_both() -> tuple[Outcome, Outcome]:
        async with opened(own) as engine:
            first = asyncio.create_task(engine.run(admit(own, ExecutionRequest(slow, language="c")), id="first"))
            second = asyncio.create_task(engine.run(admit(own, ExecutionRequest(slow, language="c"))))
            deadline = time.monotonic() + 30
            while engine.facts()["running"] < 2 and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            engine.cancel("first")
            return await first, await second

    first, second = asyncio.run(run_both())
    assert first.status is Status.CANCELLED
    assert (second.status, second.stdout) == (Status.OK, "done\n")


def test_cancelling_the_only_caller_ends_the_compile_step(own_settings: OwnSettings) -> None:
    own = own_settings()
    endless = "".join(f"#define M{n} M{n + 1} M{n + 1} M{n + 1}\n" for n in range(40)) + "int main(void) { M0 }"

    async def run_one() -> tuple[Outcome, float, int]:
        async with opened(own) as engine:
            task = asyncio.create_task(engine.run(admit(own, ExecutionRequest(endless, language="c")), id="only"))
            deadline = time.monotonic() + 30
            while engine.facts()["sandbox"].get("compile_cache_misses", 0) == 0 and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # the compiler runs
            began = time.monotonic()
            assert engine.cancel("only")
            outcome = await task
            return outcome, time.monotonic() - began, engine.facts()["running"]

    outcome, seconds, running = asyncio.run(run_one())
    assert (outcome.status, running) == (Status.CANCELLED, 0)
    assert seconds < 10


def test_a_compile_error_contains_the_compilers_output(bare_box: belljar.Sandbox) -> None:
    for was_cached in (False, True):
        outcome = bare_box.run("int main(void) { return x; }", language="c")
        assert outcome.status is Status.COMPILE_FAILED
        assert outcome.exit_code is None
        assert (outcome.stdout, outcome.stderr) == ("", "")
        assert outcome.compilation is not None
        assert outcome.compilation.status is Status.FAILED
        assert outcome.compilation.exit_code == 1
        assert "main.c:1" in outcome.compilation.stderr
        assert outcome.compilation.was_cached is was_cached


def test_a_compiler_that_never_ends_is_stopped(own_settings: OwnSettings) -> None:
    own = own_settings()
    own = dataclasses.replace(
        own,
        default_limits=dataclasses.replace(own.default_limits, wall_seconds=1.0, cpu_seconds=1.0),
        ceiling_limits=dataclasses.replace(own.ceiling_limits, wall_seconds=2.0, cpu_seconds=2.0),
    )
    bomb = "\n".join(
        [f"#define M{n} M{n + 1} M{n + 1} M{n + 1} M{n + 1}" for n in range(40)]
        + ["#define M40 ;", "int main() { M0 }"]
    )
    with belljar.Sandbox(settings=own) as own_box:
        outcome = own_box.run(bomb, language="c")
    assert outcome.status is Status.COMPILE_FAILED
    assert outcome.compilation is not None
    assert outcome.compilation.status in (Status.TIMED_OUT, Status.OUT_OF_MEMORY)


def test_a_warning_is_reported_with_success(bare_box: belljar.Sandbox) -> None:
    outcome = bare_box.run("#warning careful\nint main(void) { return 3; }", language="c")
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 3)
    assert outcome.compilation is not None
    assert outcome.compilation.status is Status.OK
    assert "careful" in outcome.compilation.stderr


def test_streams_of_a_compiled_program(own_settings: OwnSettings) -> None:
    own = own_settings()

    async def events(code: str) -> list[Any]:
        async with opened(own) as engine:
            return [event async for event in engine.stream(admit(own, ExecutionRequest(code, language="c", stdin="4")))]

    good = asyncio.run(events(ECHO))
    assert isinstance(good[0], Started)
    assert Output(stream="stdout", text="8\n") in good
    bad = asyncio.run(events("int main(void) {"))
    assert [type(event) for event in bad] == [Started, Finished]
    assert bad[-1].outcome.status is Status.COMPILE_FAILED


def test_the_compiled_program_is_not_an_artifact(bare_box: belljar.Sandbox) -> None:
    writes = '#include <stdio.h>\nint main(void) { fputs("made", fopen("made.txt", "w")); return 0; }'
    outcome = bare_box.run(writes, language="c", artifacts=["**"], files={"given.txt": "given"})
    names = {file.path for file in outcome.artifacts}
    assert "made.txt" in names
    assert "program" not in names


def test_an_input_file_cannot_replace_the_compiled_program(bare_box: belljar.Sandbox) -> None:
    planted = "#!/bin/sh\necho planted\n"
    outcome = bare_box.run(ECHO, language="c", stdin="3", files={"program": planted})
    assert (outcome.status, outcome.stdout) == (Status.OK, "6\n")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('#include "/etc/shadow"', id="include"),
        pytest.param('__asm__(".incbin \\"/root/.profile\\"");', id="assembler"),
    ],
)
def test_the_compiler_sees_nothing_of_the_host(bare_box: belljar.Sandbox, source: str) -> None:
    outcome = bare_box.run(f"{source}\nint main(void) {{ return 0; }}", language="c")
    assert outcome.status is Status.COMPILE_FAILED
    assert outcome.compilation is not None
    assert "No such file" in outcome.compilation.stderr or "file not found" in outcome.compilation.stderr


def test_a_read_only_state_directory_only_costs_time(own_settings: OwnSettings) -> None:
    own = own_settings()
    (own.state_dir / "compiled").write_text("in the way")
    try:
        with belljar.Sandbox(settings=own) as own_box:
            outcomes = [own_box.run(ECHO, language="c", stdin="4") for _ in range(2)]
    finally:
        (own.state_dir / "compiled").unlink()
    assert [outcome.stdout for outcome in outcomes] == ["8\n", "8\n"]


def test_a_damaged_entry_is_compiled_again(own_settings: OwnSettings) -> None:
    own = own_settings()
    with belljar.Sandbox(settings=own) as own_box:
        own_box.run(ECHO, language="c")
        (entry,) = (own.state_dir / "compiled").iterdir()
        entry.write_bytes(entry.read_bytes()[:-100])
        outcome = own_box.run(ECHO, language="c", stdin="5")
    assert outcome.stdout == "10\n"
    assert outcome.compilation is not None
    assert not outcome.compilation.was_cached


@pytest.mark.parametrize("cache_bytes", [100_000_000, 0], ids=["kept", "not_kept"])
def test_compiler_output_may_be_long_when_escaped(own_settings: OwnSettings, cache_bytes: int) -> None:
    code = "".join(f"#error {chr(1) * 150_000}\n" for _ in range(3))
    with belljar.Sandbox(settings=own_settings(compile_cache_bytes=cache_bytes)) as own_box:
        outcomes = [own_box.run(code, language="c") for _ in range(2)]
    assert [outcome.status for outcome in outcomes] == [Status.COMPILE_FAILED] * 2
    first, second = (outcome.compilation for outcome in outcomes)
    assert first is not None
    assert second is not None
    assert len(first.stderr) > 800_000
    assert first.stderr == second.stderr
    assert second.was_cached is (cache_bytes > 0)


def test_the_cache_size_is_limited(own_settings: OwnSettings) -> None:
    own = own_settings(compile_cache_bytes=50_000)
    with belljar.Sandbox(settings=own) as own_box:
        for n in range(5):
            assert own_box.run(f"int main(void) {{ return {n}; }}", language="c").exit_code == n
        entries = list((own.state_dir / "compiled").iterdir())
    assert 1 <= len(entries) < 5
    assert sum(entry.stat().st_size for entry in entries) <= 50_000


def test_without_a_cache_everything_still_runs(own_settings: OwnSettings) -> None:
    own = own_settings(compile_cache_bytes=0)
    with belljar.Sandbox(settings=own) as own_box:
        for _ in range(2):
            outcome = own_box.run(ECHO, language="c", stdin="6")
            assert outcome.stdout == "12\n"
            assert outcome.compilation is not None
            assert not outcome.compilation.was_cached
    assert not (own.state_dir / "compiled").exists()


def test_a_missing_language_comes_with_install_instructions(bare_box: belljar.Sandbox) -> None:
    with pytest.raises(ToolchainMissing) as refused:
        bare_box.run("console.log(1)", language="luau")  # its package would be in the state directory, which is empty
    assert "belljar languages install luau" in refused.value.message
    assert refused.value.code == "toolchain_missing"


def test_a_new_caller_does_not_wait_for_a_cancelled_step(own_settings: OwnSettings) -> None:
    own = own_settings()
    functions = "".join(f"int f{n}(int x) {{ return x * {n} + x / (x + {n}); }}\n" for n in range(2000))
    slow = f"{functions}int main(void) {{ return 7; }}"

    async def run_both() -> tuple[Outcome, Outcome]:
        async with opened(own) as engine:
            first = asyncio.create_task(engine.run(admit(own, ExecutionRequest(slow, language="c")), id="first"))
            deadline = time.monotonic() + 30
            while engine.facts()["running"] < 1 and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            engine.cancel("first")
            second = await engine.run(admit(own, ExecutionRequest(slow, language="c")))
            return await first, second

    first, second = asyncio.run(run_both())
    assert (first.status, second.exit_code) == (Status.CANCELLED, 7)


def test_a_caller_may_lower_the_compile_limits(own_settings: OwnSettings) -> None:
    own = own_settings()
    bomb = "".join(f"#define M{n} M{n + 1} M{n + 1} M{n + 1}\n" for n in range(40)) + "int main(void) { M0 }"

    async def run_one() -> Outcome:
        async with opened(own) as engine:
            execution = admit(own, ExecutionRequest(bomb, language="c"))
            return await engine.run(
                dataclasses.replace(execution, compile_limits=dataclasses.replace(execution.limits, wall_seconds=0.5))
            )

    outcome = asyncio.run(run_one())
    assert outcome.compilation is not None
    assert (outcome.status, outcome.compilation.status) == (Status.COMPILE_FAILED, Status.TIMED_OUT)


def test_no_compiled_program_stays_open(bare_box: belljar.Sandbox) -> None:
    for n in range(3):
        bare_box.run(f"int main(void) {{ return {n}; }}", language="c")
        bare_box.run("int main(void) {", language="c")
        bare_box.run("int main(void) { for (;;); }", language="c", timeout=0.1)
    gc.collect()
    opened_files = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened_files.add(os.readlink(f"/proc/self/fd/{name}"))
    assert len(opened_files) > 10
    assert not [path for path in opened_files if "compiled" in path]


def test_signals_have_their_defaults(bare_box: belljar.Sandbox) -> None:
    outcome = bare_box.run(
        "yes | head -n 1; echo ${PIPESTATUS[0]}; grep -E 'Sig(Ign|Blk)' /proc/self/status", language="sh"
    )
    assert outcome.stdout.splitlines() == ["y", "141", "SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]


def test_no_descriptor_or_variable_of_belljar_is_inherited(bare_box: belljar.Sandbox) -> None:
    outcome = bare_box.run("ls /proc/self/fd; env | sort", language="sh", env={"LEVEL": "3"})
    lines = outcome.stdout.split()
    assert lines[:4] == ["0", "1", "2", "3"]  # the last one belongs to ls itself
    names = {line.partition("=")[0] for line in lines[4:] if "=" in line}
    assert names >= {"HOME", "LEVEL", "PATH", "TMPDIR"}
    assert not {name for name in names if "BELLJAR" in name}
    assert "HOME=/work" in lines


def test_running_one_language_opens_one_pool(own_settings: OwnSettings) -> None:
    own = own_settings()

    async def zygotes(first_language: str) -> int:
        engine = build_engine(own, first_language=first_language)
        await engine.open()
        try:
            assert (await engine.run(admit(own, ExecutionRequest(ECHO, language="c", stdin="4")))).stdout == "8\n"
            return int(engine.facts()["sandbox"]["zygotes"])
        finally:
            await engine.close(grace_seconds=0.0)

    assert asyncio.run(zygotes("c")) == 1
    assert asyncio.run(zygotes("python")) == 2


def test_prepared_files_can_be_used_but_not_changed(bare_box: belljar.Sandbox, bare_settings: Settings) -> None:
    machine = installed_toolchains(bare_settings)
    if not machine.is_available("go"):
        pytest.skip("NOT TRIED: there is no go")
    machine.prepare(load_all()["go"])
    outcome = bare_box.run("echo poison > /toolchains/go/prepared/gocache/00/poison", language="sh")
    assert "Read-only file system" in outcome.stderr
    assert not list((bare_settings.state_dir / "toolchains/go/prepared/gocache/00").glob("poison"))
    hello = bare_box.run('package main\nimport "fmt"\nfunc main() { fmt.Println("made") }\n', language="go", timeout=60)
    assert hello.stdout == "made\n"
