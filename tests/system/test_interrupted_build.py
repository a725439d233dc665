"""A process stopped while it builds an environment ends at once, with its installer, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_python import SlowPython, without_uv

import belljar
from belljar.contract.errors import Draining
from belljar.settings import Settings

STOP_SECONDS = 30.0
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
GREETING_LINES = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": GREETING},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)

CONFIG = "CONFIG"  # replaced by the path of the settings file
BELLJAR = ("-m", "belljar", "--config", CONFIG)
SERVE = (*BELLJAR, "serve")
MCP = (*BELLJAR, "mcp")
RUN = (*BELLJAR, "run", "-c", "print(1)")

LOAD = """
import asyncio, pathlib, sys, belljar
from belljar.settings import load

settings = load(pathlib.Path(sys.argv[1]))

async def main():
    async with belljar.AsyncSandbox(settings=settings) as box:
        await box.run("print(1)")
"""
CANCEL = """
async def cancel():
    task = asyncio.create_task(main())
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()
    await asyncio.wait([task])

asyncio.run(cancel())
"""
ASYNCHRONOUS = ("-c", LOAD + "asyncio.run(main())", CONFIG)
CANCELLED = ("-c", LOAD + CANCEL, CONFIG)
BLOCKING = ("-c", LOAD + "belljar.Sandbox(settings=settings).open()", CONFIG)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[SlowPython]:
    slow = SlowPython(tmp_path / "slow")
    yield slow
    slow.go_on()


@contextlib.contextmanager
def started(
    arguments: tuple[str, ...], environ: dict[str, str], python: SlowPython, place: Path
) -> Iterator[subprocess.Popen[bytes]]:
    config = str(python.write_config())
    variables = {
        **environ,
        "PATH": without_uv()["PATH"],
        "BELLJAR_STATE_DIR": str(place / "state"),
        "BELLJAR_RUNTIME_DIR": str(place / "run"),
    }
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *(config if each == CONFIG else each for each in arguments)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "stop_signal", "code"),
    [
        pytest.param(SERVE, signal.SIGTERM, 0, id="serve_terminated"),
        pytest.param(SERVE, signal.SIGINT, 0, id="serve_interrupted"),
        pytest.param(MCP, None, 0, id="mcp_left_by_its_client"),
        pytest.param(MCP, signal.SIGTERM, 0, id="mcp_terminated"),
        pytest.param(RUN, signal.SIGTERM, 128 + signal.SIGTERM, id="run_terminated"),
        pytest.param(RUN, signal.SIGINT, 128 + signal.SIGINT, id="run_interrupted"),
        pytest.param(ASYNCHRONOUS, signal.SIGINT, -signal.SIGINT, id="asynchronous_sandbox_interrupted"),
        pytest.param(CANCELLED, None, 0, id="asynchronous_sandbox_cancelled"),
        pytest.param(BLOCKING, signal.SIGINT, -signal.SIGINT, id="blocking_sandbox_interrupted"),
    ],
)
def test_a_signal_stops_a_build_at_once(
    environ: dict[str, str],
    python: SlowPython,
    tmp_path: Path,
    arguments: tuple[str, ...],
    stop_signal: signal.Signals | None,
    code: int,
) -> None:
    with started(arguments, environ, python, tmp_path) as process:
        assert process.stdin is not None
        if arguments == MCP:
            process.stdin.writelines(json.dumps(line).encode() + b"\n" for line in GREETING_LINES)
            process.stdin.flush()
        elif arguments == RUN:
            process.stdin.close()
        python.wait_until_begun()
        if stop_signal is None:
            process.stdin.close()
        else:
            process.send_signal(stop_signal)
        assert process.wait(STOP_SECONDS) == code
        assert not python.is_alive
        python.wait_until_gone()
        assert os.listdir(tmp_path / "state/environments") == ["default.lock"]


@pytest.fixture
def own_settings(settings: Settings, python: SlowPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a sandbox in this process."""
    monkeypatch.setenv("PATH", without_uv()["PATH"])
    return dataclasses.replace(
        settings, state_dir=tmp_path / "state", runtime_dir=tmp_path / "run", environments={"default": python.settings}
    )


def test_cancelling_one_waiting_run_does_not_stop_the_build(own_settings: Settings, python: SlowPython) -> None:
    async def cancel_one() -> None:
        box = belljar.AsyncSandbox(settings=own_settings)
        hasty, patient = (asyncio.create_task(box.run(f"print({each})")) for each in range(2))
        try:
            await asyncio.to_thread(python.wait_until_begun)
            hasty.cancel()
            await asyncio.wait([hasty])
            assert hasty.cancelled()
            assert python.is_alive
            python.go_on()
            assert (await patient).stdout == "1\n"
        finally:
            python.go_on()
            await box.close(0.0)

    asyncio.run(cancel_one())


def test_a_sandbox_is_closed_while_it_opens(own_settings: Settings, python: SlowPython) -> None:
    async def close() -> None:
        box = belljar.AsyncSandbox(settings=own_settings)
        running = asyncio.create_task(box.run("print(1)"))
        try:
            await asyncio.to_thread(python.wait_until_begun)
            await asyncio.wait_for(box.close(), STOP_SECONDS)
            assert not python.is_alive
            with pytest.raises(Draining):
                await running
        finally:
            python.go_on()

    asyncio.run(close())
